"""The work that clients are given, and the helpers of all of them. A client's environment has
nothing but the standard library."""

import os
import subprocess
from dataclasses import dataclass
from typing import Any, Literal

MODEL = "target"
QUESTION = "Write a function that adds two numbers."
CODE = "def add(a, b):\n"
MILD = 'root ::= "Mild."'
"""A grammar for an answer that ends by itself."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "days": {"type": "integer", "enum": [1, 2, 3]},
        "unit": {"type": "string", "enum": ["C", "F"]},
    },
    "required": ["days", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The forecast.", "parameters": SCHEMA},
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
SINGLY: Any = {"max_tokens": 128, "parallel_tool_calls": False}
"""One call at a time: this target would go on with calls."""

CALLED: list[object] = []


@dataclass(frozen=True, slots=True)
class Place:
    """A daemon's API: its url ends with /v1; key is sent with each request."""

    name: str
    url: str
    key: str


def weather(days: Literal[1, 2, 3], unit: Literal["C", "F"]) -> str:
    """The forecast."""
    assert days in {1, 2, 3}
    assert unit in {"C", "F"}
    CALLED.append((days, unit))
    return "mild"


def called(times: int) -> None:
    """Check that `weather` was called so often since the last check."""
    assert len(CALLED) == times, CALLED
    CALLED.clear()


def output(command: list[str], variables: dict[str, str], folder: str | None = None) -> str:
    """Return what a command prints. Raise AssertionError if it fails."""
    place = {"PWD": folder} if folder is not None else {}  # some believe it rather than the system
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | place | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-600:]
    return done.stdout
