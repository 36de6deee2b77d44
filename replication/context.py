"""How long a prompt may be, and what a longer one would need."""

from dataclasses import dataclass

from replication.errors import ReplicationError


@dataclass(frozen=True)
class Context:
    """tokens: of the longest prompt whose keys can be moved. made_for: of the longest one that the model takes, which
    is longer where its rotary frequencies change in between (long-rope)."""

    tokens: int
    made_for: int

    def require(self, tokens: int, remedy: str, of: str = "") -> None:
        """ReplicationError unless a prompt of so many tokens fits; remedy: what to do; of: whose tokens they are."""
        if tokens > self.tokens:
            raise ReplicationError(f"{tokens} tokens{of} exceed {self._limit()}: {remedy}")

    def _limit(self) -> str:
        if self.made_for == self.tokens:
            return f"the model's context of {self.tokens}"
        return (
            f"{self.tokens}, the longest prompt for reuse (the model's context is {self.made_for}, but beyond "
            f"{self.tokens} its rotary frequencies change, so stored keys cannot be moved there; that would need keys "
            "stored before rotation)"
        )
