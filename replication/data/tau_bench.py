"""tau-bench's airline agent: whole conversations of a customer, an agent and its tools, as they were logged.

The file of that name is historical_trajectories/gpt-4o-airline.json of sierra-research/tau-bench (MIT). All
conversations begin with the same system prompt; the definitions of the tools are not in the file. No times are either.
"""

import json
from pathlib import Path
from typing import Any

from replication.data.local import read_local
from replication.errors import ReplicationError

FILE = "taubench_gpt-4o-airline_200traj.json"
_ORIGIN = "historical_trajectories/gpt-4o-airline.json of github.com/sierra-research/tau-bench, under that name"


def load_conversations(data_dir: str | Path | None = None) -> tuple[list[list[dict[str, Any]]], dict]:
    """The messages of every conversation, in the form of the chat completions API, and the file's name and hash.

    data_dir: defaults to the environment variable REPLICATION_DATA. ReplicationError when the file is not there, or
    holds no conversations.
    """
    content, source = read_local(FILE, data_dir, _ORIGIN)
    try:
        conversations = [run["traj"] for run in json.loads(content)]
        if not all(isinstance(message["role"], str) for messages in conversations for message in messages):
            raise ValueError("a message's role is no text")
    except (ValueError, KeyError, TypeError) as error:
        raise ReplicationError(f"{FILE} is no list of trajectories: {error!r}") from error
    if not conversations:
        raise ReplicationError(f"{FILE} is empty; it should be {_ORIGIN}")
    return conversations, source


def calls(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The request that each message of the assistant answered: all messages before it."""
    return [messages[:at] for at, message in enumerate(messages) if message["role"] == "assistant"]
