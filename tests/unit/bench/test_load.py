"""Many clients at once: sums, clients in threads, another server, and the command."""

import json
import threading
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from specmesh.bench import load
from specmesh.bench.load import LoadPlan, LoadText, Percentiles, levels, lines
from specmesh.bench.server import Server
from specmesh.cli import main
from specmesh.client import Json
from specmesh.errors import Busy, ConfigError, DaemonUnreachable, EngineError, SpecmeshError

LOAD = LoadPlan((1, 3), ("a", "b"), 2, 4, {"draft_n": "auto"})


def text(client: int = 0, prompt: int = 0, **change: object) -> LoadText:
    """A text of 4 tokens, asked for at 10 s, that came at 10.1, 10.2 and 10.5 s."""
    plain: dict[str, object] = {"begun": 10.0, "arrivals": (10.1, 10.2, 10.5), "tokens": 4, "text": "said"}
    return LoadText(client, prompt, **(plain | change))  # type: ignore[arg-type]


def test_one_text():
    """The rate is over the whole time, the first wait included; gaps are between arrivals."""
    [level] = levels([(1, [text()])])
    assert (level.sessions, level.texts, level.tokens, level.seconds) == (1, 1, 4, 0.5)
    assert level.tokens_per_second == level.mean == level.slowest == 8.0
    assert level.fairness == 1.0
    assert level.first_token_ms == Percentiles(100.0, 100.0)
    assert level.gap_ms == Percentiles(100.0, 300.0)
    assert level.acceptance_rate is None
    assert (level.identical, level.compared, level.refused) == (0, 0, 0)


def test_a_client_that_waits_is_the_slowest():
    """It begins with the others and ends last: fairness is its rate over the mean of all, throughput that of all."""
    late = text(1, arrivals=(10.9, 11.0), drafted=4, accepted=1, refused=3)
    [level] = levels([(2, [text(drafted=4, accepted=3), late])])
    assert level.tokens_per_second == 8.0
    assert (level.slowest, level.mean) == (4.0, 6.0)
    assert level.fairness == pytest.approx(4 / 6, abs=1e-4)
    assert level.acceptance_rate == 0.5
    assert level.refused == 3
    assert level.first_token_ms == Percentiles(100.0, 900.0)


def test_texts_one_after_the_other_are_one_client():
    """Its time runs from its first request to its last token."""
    second = text(begun=10.5, arrivals=(10.6, 11.0))
    [level] = levels([(1, [text(), second])])
    assert level.slowest == level.tokens_per_second == 8.0


def test_texts_are_compared_across_levels():
    """With the first one of the same prompt, whoever got it; a first one is compared with nothing."""
    one, two = levels([(1, [text()]), (3, [text(), text(1, 1), text(2, text="other")])])
    assert (one.identical, one.compared) == (0, 0)
    assert (two.identical, two.compared) == (1, 2)


def test_an_empty_text():
    """No division by nothing."""
    [level] = levels([(1, [text(arrivals=(), tokens=0)])])
    assert (level.tokens_per_second, level.fairness, level.first_token_ms) == (0.0, 0.0, Percentiles(0.0, 0.0))


def test_lines_are_aligned():
    """A heading and a line per level, then what the columns mean."""
    told = lines(levels([(1, [text()]), (2, [text(), text(1)])]))
    assert len({len(line) for line in told[:3]}) == 1
    assert [line.split()[0] for line in told[1:3]] == ["1", "2"]
    assert len(told) == 5


class Crowded:
    """A source with so many places; it says each prompt in capitals, all clients of a level being there at once."""

    def __init__(self, places: int, together: int) -> None:
        self.asked: list[Json] = []
        self.most = self._now = 0
        self._places, self._lock = places, threading.Lock()
        self._met = threading.Barrier(together)

    def complete(self, body: Json) -> Generator[Json, None, None]:
        with self._lock:
            if self._now >= self._places:
                raise Busy("full")
            self.asked.append(body)
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            if len(self.asked) > 1 and self._places >= self._met.parties:
                self._met.wait(30)
            yield {"specmesh": {"session": 7}}
            yield {"choices": [{"text": str(body["prompt"]).upper()}], "specmesh": {"token_ids": [1, 2, 3]}}
            yield {"specmesh": {"report": {"drafted": 4, "accepted": 2}, "token_ids": []}}
        finally:
            with self._lock:
                self._now -= 1


def test_clients_run_at_once():
    """So many at a time, each with its own prompt and its texts in a row, after one that is not counted."""
    source = Crowded(3, 3)
    done: list[int] = []
    [(count, texts)] = load.measure(source, LoadPlan((3,), ("a", "b"), 2, 4, {"draft_n": 0}), lambda: done.append(1))
    assert (count, source.most, len(done)) == (3, 3, 6)
    assert sorted((one.client, one.prompt) for one in texts) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert {(one.tokens, one.drafted, one.accepted, len(one.arrivals)) for one in texts} == {(3, 4, 2, 1)}
    assert {one.text for one in texts} == {"A", "B"}
    assert len(source.asked) == 7
    assert source.asked[1]["max_tokens"] == 4
    assert source.asked[1]["draft_n"] == 0
    assert source.asked[1]["ignore_eos"] is True


class Full:
    """A source that has no place until it was asked so often."""

    def __init__(self, refusals: int) -> None:
        self._left = refusals

    def complete(self, body: Json) -> Generator[Json, None, None]:
        self._left -= 1
        if self._left >= 0:
            raise Busy("full")
        yield {"choices": [{"text": "x"}], "specmesh": {"token_ids": [1]}}


def test_who_is_refused_asks_again(monkeypatch: pytest.MonkeyPatch):
    """Until there is a place; the text tells how often."""
    monkeypatch.setattr(load, "AGAIN", 0.001)
    [found] = load.crowd(Full(3), LoadPlan((1,), ("a",), 1, 4, {}), 1, lambda: None)
    assert (found.refused, found.tokens) == (3, 1)


class Broken:
    """A source that fails after its first text."""

    def __init__(self, error: SpecmeshError) -> None:
        self.error, self.texts = error, 0

    def complete(self, body: Json) -> Generator[Json, None, None]:
        self.texts += 1
        if self.texts > 1:
            raise self.error
        yield {"choices": [{"text": "x"}]}


def test_an_error_of_one_client_is_raised():
    """Where the level is waited for; a daemon that has no place for the very first text is told too."""
    with pytest.raises(EngineError, match="burnt"):
        load.measure(Broken(EngineError("burnt")), LOAD, lambda: None)
    with pytest.raises(Busy):
        load.measure(Crowded(0, 2), LOAD, lambda: None)


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


@pytest.mark.parametrize("wrong", ["", "127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://[", "http://a:b"])
def test_no_url(wrong: str):
    """Refused before anything is asked."""
    with pytest.raises(ConfigError, match="--url"):
        Server(wrong)


def test_nobody_answers():
    """A closed port, by the command: 69 and one line."""
    done = CliRunner().invoke(main, ["bench", "load", "--url", "http://127.0.0.1:1"])
    assert (done.exit_code, done.stdout) == (69, "")
    assert "no server answers at http://127.0.0.1:1" in done.stderr


def test_the_command(url: str):
    """Against another server: a table, or JSON; draft_n only where it was asked for."""
    args = ["bench", "load", "--url", f"{url}/prefix", "--sessions", "1,2", "--num-prompts", "2"]
    done = CliRunner().invoke(main, [*args, "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["model"], told["url"], told["draft_n"]) == ({"name": "theirs"}, f"{url}/prefix", None)
    assert [(level["sessions"], level["tokens"], level["compared"]) for level in told["levels"]] == [
        (1, 5, 0),
        (2, 10, 1),
    ]
    assert told["levels"][1]["first_token_ms"]["p50"] > 0
    shown = CliRunner().invoke(main, [*args, "--draft-n", "3"]).stdout
    assert shown.startswith(f"theirs, {url}/prefix\nprompts 2, iterations 1, 64 tokens each; draft_n 3\n")
    assert CliRunner().invoke(main, ["bench", "load", "--sessions", "0"]).exit_code == 2
