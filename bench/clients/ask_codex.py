"""Codex CLI, as `codex exec` by `/v1/responses`: a turn that runs a command and reads its output.

This target would not call its tools. A proxy has it do so: of the body that Codex sends, the first
request of the turn calls `exec_command`, whose command can only be `echo mild`, and the others have
an answer that a grammar writes. All the rest is as Codex sends it.
"""

import json
import tempfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from interception import Body, through
from work import MILD, MODEL, Place, closed_object, events_of, output

COMMAND = "exec_command"
FIXED = closed_object(cmd={"type": "string", "enum": ["echo mild"]})
CONFIG = """
model = "{model}"
model_provider = "specmesh"
check_for_update_on_startup = false

[model_providers.specmesh]
name = "specmesh"
base_url = "{url}"
env_key = "SPECMESH_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


class Turn:
    """Makes the target work as a capable one would, and keeps the results of its tools."""

    def __init__(self) -> None:
        self.results: list[str] = []

    def steer(self, request: BaseHTTPRequestHandler, body: Body | None) -> Body | None:
        """Return the body with a choice for the target."""
        if body is None or not request.path.endswith("/responses"):
            return body
        known = len(self.results)
        for item in body["input"]:
            if item.get("type") == "function_call_output":
                self.results.append(json.dumps(item["output"]))
        if len(self.results) > known:
            return body | {"tool_choice": "none", "grammar": MILD}
        for tool in body["tools"]:
            if tool.get("name") == COMMAND:
                tool["parameters"] = FIXED
        return body | {"tool_choice": {"type": "function", "name": COMMAND}}


def ask(place: Place, installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    codex = str(installed / "node_modules" / ".bin" / "codex")
    turn = Turn()
    with tempfile.TemporaryDirectory() as home, through(place, turn.steer) as steered:
        config = CONFIG.format(model=MODEL, url=steered.url)
        Path(home, "config.toml").write_text(config, encoding="utf-8")
        work = Path(home, "work")
        work.mkdir()
        command = [codex, "exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only"]
        variables = {"HOME": home, "CODEX_HOME": home, "SPECMESH_KEY": place.key}
        printed = output([*command, "What does `echo mild` print?"], variables, str(work))
    kinds: list[str] = []
    answer = ""
    for event in events_of(printed):
        kinds.append(event["type"])
        item = event.get("item", {})
        if item.get("type") == "agent_message":
            answer += item["text"]
    assert "turn.completed" in kinds, printed[-600:]
    assert turn.results, "no result of a command came back"
    yield "tools stream", turn.results[0]
    yield "answer", answer
