"""Many clients at once: sums, clients in threads, another server, and the command."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from specmesh.bench import load
from specmesh.bench.load import LoadPlan, LoadText, Server, levels
from specmesh.client import Json
from specmesh.errors import Busy, DaemonUnreachable, SpecmeshError


def text(client: int = 0, prompt: int = 0, **change: object) -> LoadText:
    """A text of 4 tokens, asked for at 10 s, that came at 10.1, 10.2 and 10.5 s."""
    plain: dict[str, object] = {"begun": 10.0, "arrivals": (10.1, 10.2, 10.5), "tokens": 4, "text": "said"}
    return LoadText(client, prompt, **(plain | change))  # type: ignore[arg-type]


def test_one_text():
    """The rate is over the whole time, the first wait included; gaps are between arrivals."""
    [level] = levels([(1, [text()])])
    counts = {"sessions": 1, "texts": 1, "tokens": 4, "seconds": 0.5, "identical": 0, "compared": 0, "refused": 0}
    rates = {"tokens_per_second": 8.0, "mean": 8.0, "slowest": 8.0, "fairness": 1.0, "acceptance_rate": None}
    assert level == counts | rates | {
        "first_token_ms": {"p50": 100.0, "p99": 100.0},
        "gap_ms": {"p50": 100.0, "p99": 300.0},
    }


EVENTS: list[Json] = [
    {"choices": [{"index": 0, "text": "He", "finish_reason": None}]},
    {"choices": [{"index": 0, "text": "llo", "finish_reason": None}]},
    {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]},
    {"choices": [], "usage": {"completion_tokens": 5}, "timings": {"draft_n": 3, "draft_n_accepted": 2}},
]


class Handler(BaseHTTPRequestHandler):
    """What llama-server answers, as far as it matters; a prompt "full" is refused, "wrong" too, for good."""

    def do_GET(self) -> None:
        self._say(200, {"data": [{"id": "theirs"}]} if self.path == "/prefix/v1/models" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["prompt"] in ("full", "wrong"):
            self._say(503 if body["prompt"] == "full" else 400, {"error": {"message": "no"}})
            return
        assert body["stream_options"] == {"include_usage": True}
        self.send_response(200)
        self.end_headers()
        for event in EVENTS[: 2 if body["prompt"] == "short" else 4]:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if body["prompt"] != "short":
            self.wfile.write(b"data: [DONE]\n\n")

    def _say(self, status: int, told: Json) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Another server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_another_server(url: str):
    """Its tokens are those of its usage, its drafts those of llama-server's timings; the base of its paths counts."""
    server = Server(f"{url}/prefix/v1/")
    assert server.model() == "theirs"
    [(_, [found])] = load.measure(server, LoadPlan((1,), ("a",), 1, 4, {}), lambda: None)
    assert (found.text, found.tokens, found.drafted, found.accepted, len(found.arrivals)) == ("Hello", 5, 3, 2, 2)


def test_a_server_that_refuses(url: str):
    """For now, for good, or in the middle."""
    server = Server(url)
    with pytest.raises(DaemonUnreachable, match="names none"):
        server.model()
    for prompt, error in (("full", Busy), ("wrong", SpecmeshError), ("short", DaemonUnreachable)):
        with pytest.raises(error):
            list(server.complete({"prompt": prompt}))
