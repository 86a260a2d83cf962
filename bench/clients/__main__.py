"""Have common API clients do their work, with tools and without, at both daemons.

    python bench/clients --venvs DIR [--only openai,aider] [--record tests/e2e/client_bodies.json]

Each client is installed by pip or npm in a folder of its own under DIR, if it is not there yet,
and asks a verifier and a drafter of the bundled pair, with API keys and without, streaming and not.
Work with tools: calls, which a grammar has this target write, and answers to their results. Prints
a table, and which clients could not be installed; exit code 1 if something failed or nothing
ran. `--record` writes down the requests of the clients, without keys.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from interception import Body, through
from packages import PACKAGES, Installed, installed
from work import Place

sys.path.append(str(Path(__file__).parents[1]))

from command_line import Options
from live import http_pair

OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "AIDER_ANALYTICS_DISABLE": "true",
    "AIDER_CHECK_UPDATE": "false",
    "AIDER_SHOW_RELEASE_NOTES": "false",
}
"""Variables that keep clients from asking the internet for prices, updates or a place of traces."""
KEY = "sk-of-this-benchmark"
KEPT = ("accept", "content-type", "transfer-encoding")
"""Headers that are recorded."""
SHORT = 200  # letters of a recorded content
CTX = 32768
"""Tokens: an agent's instructions and tools have 20,000 of the bundled vocabulary."""
PATIENCE = 1800.0  # seconds that a client has for its work at two daemons

HERMES = (
    "{% if tools %}<|im_start|>system\nCall {% for tool in tools %}{{ tool.function.name }}, "
    "{% endfor %}by <tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or () %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A small template of the family whose calls are between `<tool_call>` marks. Of tools it has the
names only: prompts of agents are long enough."""


class Recorder:
    """Keeps the requests of clients, each once."""

    def __init__(self) -> None:
        self.client = ""
        self.kept: list[dict[str, Any]] = []

    def pass_on(self, request: BaseHTTPRequestHandler, body: Body | None) -> Body | None:
        """Keep a request, and return its body as it is."""
        headers: dict[str, str] = {}
        for name in KEPT:
            if name in request.headers:
                headers[name] = request.headers[name]
        asked = {
            "client": self.client,
            "method": request.command,
            "path": request.path,
            "headers": headers,
            "key": "Authorization" in request.headers,
            "body": json.loads(json.dumps(body), object_hook=shortened),
        }
        if asked not in self.kept:
            self.kept.append(asked)
        return body


def shortened(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object whose `content` is not long: instructions are their client's own."""
    content = value.get("content")
    if isinstance(content, str):
        return value | {"content": content[:SHORT]}
    return value


def asked_by(name: str, client: Installed, places: list[Place]) -> list[list[str]]:
    """Return the rows of a client: its work at these places."""
    worker = str(Path(__file__).with_name("worker.py"))
    described = json.dumps(list(map(asdict, places)))
    environment = dict(OFFLINE)
    for variable, value in os.environ.items():
        if not variable.startswith(("ANTHROPIC_", "OPENAI_", "SPECMESH_", "PYTHON")):
            environment.setdefault(variable, value)
    done = subprocess.run(
        [str(client.python), worker, name, str(client.folder), described],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    rows: list[list[str]] = []
    for line in done.stdout.splitlines():
        if line.startswith('["'):
            rows.append(json.loads(line))
    if not rows:
        end = " ".join(done.stderr.split())[-300:]
        rows.append([name, "", "", f"it printed nothing: {end}"])
    return rows


def run(clients: dict[str, Installed], key: str, recorder: Recorder | None) -> list[list[str]]:
    """Return the rows of all clients, at a pair that wants this key, or none.

    A key is sent even if none is wanted.
    """
    kind = "a key" if key else "no key"
    rows: list[list[str]] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp"))
        pair = http_pair(Path(folder), template=HERMES, ctx=CTX, key=key)
        places: list[Place] = []
        for api in stack.enter_context(pair):
            places.append(Place(f"{api.name}, {kind}", api.url, KEY))
        if recorder is not None:
            places[0] = stack.enter_context(through(places[0], recorder.pass_on))
        for name, client in clients.items():
            if recorder is not None:
                recorder.client = name
            rows += asked_by(name, client, places)
    return rows


def main() -> None:
    """Install the clients, run them, print the table."""
    parser = Options(__doc__)
    parser.add_argument(
        "--venvs", type=Path, required=True, help="a folder for the clients' environments"
    )
    parser.add_argument("--only", default=",".join(PACKAGES), help="names, with commas")
    parser.add_argument("--record", type=Path, help="write what the clients sent into this file")
    options = parser.parse_args()
    clients: dict[str, Installed] = {}
    missing: list[str] = []
    for name in options.only.split(","):
        client = installed(name, options.venvs.resolve())
        if client is None:
            missing.append(name)
        else:
            clients[name] = client
    recorder = Recorder() if options.record else None
    rows = run(clients, KEY, recorder)
    rows += run(clients, "", None)
    print("| client | daemon | what | |\n|---|---|---|---|")
    good = 0
    for row in rows:
        print(f"| {' | '.join(row)} |")
        good += int(row[-1] == "ok")
    print(f"\n{good} of {len(rows)} ok")
    for name in missing:
        print(f"skipped, it could not be installed: {name}")
    if recorder is not None:
        kept = json.dumps(recorder.kept, indent=1, ensure_ascii=False)
        options.record.write_text(kept + "\n", encoding="utf-8")
    raise SystemExit(good < len(rows) or not rows)


if __name__ == "__main__":
    main()
