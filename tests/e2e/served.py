"""Daemons asked over HTTP as their clients ask, at a TCP port or a socket.

Connections that take and do not give.
"""

import http.client
import json
import socket
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.ports import free_port
from processes import PATIENCE, Daemon

KEY = "sk-a-key-of-these-tests"
CONTEXT = 8000
PAGE = "https://page.example"
"""Of the pair that `served` is."""
SAID = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    def json(self):
        return dict(json.loads(self.raw))

    @property
    def choices(self):
        assert self.status == 200, self.raw
        return list(self.json()["choices"])

    @property
    def texts(self):
        return [one["text"] if "text" in one else one["message"]["content"] for one in self.choices]

    @property
    def usage(self):
        usage = self.json()["usage"]
        return usage["prompt_tokens"], usage["completion_tokens"]

    @property
    def error(self):
        assert self.status >= 400, self.raw
        return dict(self.json()["error"])

    def chunks(self):
        *events, end, rest = self.raw.decode().split("\n\n")
        assert (self.status, end, rest) == (200, "data: [DONE]", ""), self.raw
        return [json.loads(event.removeprefix("data: ")) for event in events]


@dataclass(frozen=True)
class Served:
    """A daemon with a TCP port, or its socket if `port` is 0; it has a key, or none."""

    daemon: Daemon
    port: int = 0
    key: str = ""

    def ask(self, method, path, body=None, **headers):
        """The answer to a request with its key, unless `headers` say otherwise.

        `body` as JSON, or as its bytes.
        """
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key:
            sent = {"Authorization": f"Bearer {self.key}"} | sent
        raw = body if isinstance(body, bytes | None) else json.dumps(body)
        opened = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with closing(opened) as connection:
            if not self.port:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.settimeout(PATIENCE)
                connection.sock.connect(str(self.daemon.socket))
            connection.request(method, urlsplit(path).path, raw, sent)
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, received, answer.read())

    def complete(self, **body):
        asked = {"prompt": "once", "max_tokens": 12, "temperature": 0}
        return self.ask("POST", "/v1/completions", asked | body)

    def chat(self, *messages, **body):
        asked = {"messages": messages or SAID, "max_tokens": 12, "temperature": 0}
        return self.ask("POST", "/v1/chat/completions", asked | body)


def serve(mesh, model, *options):
    """Start a verifier with a key and a drafter without, both with these options."""
    port = free_port()
    keys = mesh.folder / "api-keys"
    keys.touch(0o600)
    keys.write_text(f"# of the tests\n{KEY}\n")
    http = ("--http", f"127.0.0.1:{port}", "--api-key-file", keys)
    verifier = Served(mesh.verifier(model, *options, *http), port, KEY)
    port = free_port()
    drafter = mesh.drafter("alpha=0.8", *options, "--http", f"localhost:{port}")
    return {"verifier": verifier, "drafter": Served(drafter, port)}


@contextmanager
def many(address, count, sent=b"", seconds=PATIENCE):
    """Open so many connections that send only this.

    One that is not accepted in so many seconds sends nothing.
    """
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with ExitStack() as opened:
        made = [opened.enter_context(closing(socket.socket(family))) for _ in range(count)]
        for one in made:
            one.settimeout(seconds)
            with suppress(ConnectionError, BlockingIOError, TimeoutError):
                one.connect(str(address) if isinstance(address, Path) else address)
                one.sendall(sent)
        yield made
