"""opencode, as `opencode run` by chat completions: a turn in which it reads a file.

This target would not call its tools. A proxy has it do so: of the bodies that opencode sends, the
first with tools calls `read`, whose file can only be this one, and the others have an answer that a
grammar writes. All the rest is as opencode sends it: two user messages in a row for the title of
the session too.
"""

import json
import tempfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from interception import Body, through
from work import CODE, MILD, MODEL, Place, closed_object, events_of, output

QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


class Turn:
    """Makes the target work as a capable one would, and keeps the results of its tools."""

    def __init__(self, file: Path) -> None:
        self.results: list[str] = []
        self.titles = 0
        self._parameters = closed_object(filePath={"type": "string", "enum": [str(file)]})

    def steer(self, _request: BaseHTTPRequestHandler, body: Body | None) -> Body | None:
        """Return the body with a choice for the target."""
        if body is None:
            return None
        tools = body.get("tools", [])
        if not tools:
            self.titles += 1
        known = len(self.results)
        for message in body["messages"]:
            if message["role"] == "tool":
                self.results.append(json.dumps(message["content"]))
        if not tools:
            return body | {"grammar": MILD}
        if len(self.results) > known:
            return body | {"tool_choice": "none", "grammar": MILD}
        for tool in tools:
            if tool["function"]["name"] == "read":
                tool["function"]["parameters"] = self._parameters
        return body | {"tool_choice": {"type": "function", "function": {"name": "read"}}}


def config_of(place: Place) -> dict[str, Any]:
    """Return opencode's settings for a daemon."""
    model = {"name": MODEL, "limit": {"context": 32768, "output": 256}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "specmesh",
        "options": {"baseURL": place.url, "apiKey": place.key},
        "models": {MODEL: model},
    }
    return {"autoupdate": False, "share": "disabled", "provider": {"specmesh": provider}}


def ask(place: Place, installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    opencode = str(installed / "node_modules" / ".bin" / "opencode")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        work = Path(folder, "work")
        home.mkdir()
        work.mkdir()
        file = work / "add.py"
        file.write_text(CODE, encoding="utf-8")
        turn = Turn(file)
        with through(place, turn.steer) as steered:
            settings = json.dumps(config_of(steered))
            (work / "opencode.json").write_text(settings, encoding="utf-8")
            command = [opencode, "run", "--format", "json", "--model", f"specmesh/{MODEL}"]
            variables = {"HOME": str(home)} | QUIET
            printed = output([*command, "What is in add.py?"], variables, str(work))
    answer = ""
    for event in events_of(printed):
        assert event["type"] != "error", printed[-600:]
        if event["type"] == "text":
            answer += event["part"]["text"]
    assert "def add" in "".join(turn.results), turn.results
    yield "tools stream", turn.results[0]
    yield "title", "asked" * turn.titles
    yield "answer", answer
