"""The one error that a user's mistake raises: a single line that says what to do."""


class ReplicationError(Exception):
    """Bad input or a missing resource; its text is shown to the user as it is, without a traceback."""
