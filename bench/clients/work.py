"""The work of clients, and the helpers of all of them.

A client's environment has nothing but the standard library.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MODEL = "target"
QUESTION = "Write a function that adds two numbers."
CODE = "def add(a, b):\n"
MILD = 'root ::= "Mild."'
"""A grammar for an answer that ends by itself."""


def closed_object(**properties: object) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


DAYS = {"type": "integer", "enum": [1, 2, 3]}
UNIT = {"type": "string", "enum": ["C", "F"]}
SCHEMA = closed_object(days=DAYS, unit=UNIT)
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


def results_of(calls: Any) -> list[dict[str, str]]:
    """Return the messages that answer the calls of a message in OpenAI's form."""
    messages: list[dict[str, str]] = []
    for call in calls or ():
        result = weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return messages


def called(times: int) -> None:
    """Check that `weather` was called so often since the last check."""
    assert len(CALLED) == times, CALLED
    CALLED.clear()


def program(name: str) -> str:
    """Return the path of a program that a client has installed."""
    return str(Path(sys.executable).with_name(name))


def events_of(printed: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a command that prints one on each line."""
    events: list[dict[str, Any]] = []
    for line in printed.splitlines():
        if line.startswith("{"):
            events.append(json.loads(line))
    return events


def output(command: list[str], variables: dict[str, str], folder: str | None = None) -> str:
    """Return the output of a command. Raise AssertionError if it fails."""
    environment = os.environ | variables
    if folder is not None:
        environment["PWD"] = folder  # some believe it rather than the system
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-600:]
    return done.stdout
