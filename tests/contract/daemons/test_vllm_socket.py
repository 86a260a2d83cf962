"""The local socket beside vLLM's worker: what a verifier daemon's answers, but no texts."""

import itertools
import json
import socket
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from harness import until
from harness.fake_vllm import FakeVllm, config_of
from harness.ports import free_port
from structlog.testing import capture_logs

from specmesh.cli import main
from specmesh.cli.doctor import judge_daemon
from specmesh.cli.status import Found
from specmesh.client import Client
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import NotOffered, NotThereYet
from specmesh.paths import instance_lock
from specmesh.vllm.allowance import Allowance
from specmesh.vllm.draft_service import DraftService
from specmesh.vllm.faults import MOST_FAULTS
from specmesh.vllm.proposer import Proposer
from specmesh.vllm.settings import ProposerSettings

HTTP = "http://192.168.1.20:8000/v1"
VOCABULARY = Vocabulary(tuple(bytes([byte]) for byte in range(256)), frozenset())
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "stats-verifier.json").read_text())
PROMPT = [1, 2, 3, 4, 5] * 8
PATIENCE = 10.0  # seconds
STEP_S = 0.02  # which pays for calls that draft nothing


@pytest.fixture(autouse=True)
def paid(monkeypatch):
    """Let all calls be paid for: a busy machine stops them for longer than they may take."""
    monkeypatch.setattr(Allowance, "begin_call", lambda *_: False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vllm.sock"


@pytest.fixture
def make(path):
    """Make a proposer that has loaded its model; `close` ends it."""
    made = []

    def loaded(**changes):
        settings = {
            "bind": f"tcp://127.0.0.1:{free_port()}",
            "insecure": True,
            "http": HTTP,
            "socket": path,
        }
        options = {"settings": ProposerSettings(**settings | changes), "vocabulary": VOCABULARY}
        proposer = Proposer(config_of(), **options)
        proposer.load_model()
        made.append(proposer)
        return proposer

    yield loaded
    for proposer in made:
        proposer.close()


@pytest.fixture
def served(make):
    """A server that has generated a text that repeats itself."""
    server = FakeVllm(make(), lambda ids: ids[-5], config_of())
    server.ask(PROMPT, 40)
    server.run()
    return server


@pytest.fixture
def client_of(path):
    return lambda: Client(path)


@pytest.fixture
def client(served, client_of):
    return client_of()


def run(path, *words):
    return CliRunner().invoke(main, [*words, "--socket", str(path)])


def test_stats_are_a_verifiers(client):
    stats = client.get("/stats")
    assert stats["role"] == "verifier"
    assert stats["model"]["name"] == "fake"


def test_stats_count_what_the_server_generated(client):
    """All but a text's first token, which came by its prompt; once it is seen that it is over."""

    def counted():
        return client.get("/stats")["totals"]["generated_tokens"] == 39

    until(counted, "its tokens are counted")


@pytest.mark.usefixtures("served")
def test_stats_for_people(path):
    done = run(path, "stats")
    assert done.exit_code == 0, done.output
    assert "fake on vLLM, cpu" in done.stdout
    assert "none attached" in done.stdout


def metrics(path):
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    with closing(connection):
        connection.sock.connect(str(path))
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode().splitlines()


@pytest.mark.usefixtures("served")
def test_metrics(path):
    lines = metrics(path)
    assert 'specmesh_build_info{role="verifier",version="' in "\n".join(lines)
    assert "specmesh_engine_healthy 1.0" in lines


@pytest.mark.usefixtures("served")
def test_ping_without_drafters(path):
    done = run(path, "ping", "--count", "1")
    assert done.exit_code == 69
    assert "no drafter is attached" in done.stderr


def test_doctor_has_nothing_to_say(client, path):
    found = Found(path, "running", client.get("/stats"))
    assert judge_daemon(found).status == "ok"


@pytest.mark.usefixtures("served")
def test_who_asks_for_a_text_is_told_the_servers_address(path):
    done = run(path, "generate", "hello")
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    assert HTTP in done.stderr


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/tokenize", {"content": "hello"}),
        ("/apply-template", {"messages": [{"role": "user", "content": "hello"}]}),
    ],
)
def test_so_are_other_programs(client, resource, body):
    with pytest.raises(NotOffered, match=HTTP):
        client.get(resource, body)


def test_models(client):
    assert [model["id"] for model in client.get("/v1/models")["data"]] == ["fake"]


def test_a_socket_that_is_taken_costs_no_drafts(make, path):
    """Beside a verifier daemon of the same user, say."""
    with instance_lock(path), capture_logs() as told:
        server = FakeVllm(make(), lambda ids: ids[-5], config_of())
        server.ask(PROMPT, 40)
        server.run()
    assert "already running" in next(line for line in told if "error" in line)["error"]
    assert server.accepted > 0


def test_lines_about_a_text_are_for_debugging(make):
    """vLLM's own log says what it serves."""
    with capture_logs() as told:
        server = FakeVllm(make(), lambda ids: ids[-5], config_of())
        server.ask(PROMPT, 40)
        server.run()
        until(lambda: "session_finished" in {line["event"] for line in told}, "it is over")
    levels = {line["event"]: line["log_level"] for line in told if "session" in line}
    assert levels == {"session_opened": "debug", "session_finished": "debug"}


def test_servers_of_one_host_may_take_free_ports(make, client_of):
    """Their log and their statistics name them."""
    with capture_logs() as told:
        make(bind="tcp://127.0.0.1:*")
        make(bind="tcp://127.0.0.1:*", no_socket=True)
    first, second = [line["bind"] for line in told if line["event"] == "ready"]
    assert first != second
    assert client_of().get("/stats")["address"] == first


def breaking(proposer, numbers):
    """Let the core of a proposer raise in these steps, after or before it has done its work."""
    core = proposer.service.drafting._core
    finish = core.finish
    count = itertools.count(1)

    def broken(*args, **options):
        number = next(count)
        if number in numbers and number % 2:
            raise KeyError("before")
        effects = finish(*args, **options)
        if number in numbers:
            raise KeyError("after")
        return effects

    core.finish = broken


def serve(proposer, tokens):
    server = FakeVllm(proposer, lambda ids: ids[-5], config_of(), step_s=STEP_S)
    request = server.ask(PROMPT, tokens)
    server.run()
    assert request.text == (PROMPT * tokens)[:tokens]
    return server


def test_an_error_is_survived(make, client_of):
    """The text goes on, and gets drafts again; each error has a line in the log."""
    proposer = make()
    breaking(proposer, {3, 6, 9, 12})
    with capture_logs() as told:
        serve(proposer, 200)
    lines = [line for line in told if line["event"] == "drafting_failed"]
    assert len(lines) == MOST_FAULTS - 1
    until(lambda: serve(proposer, 60).accepted, "drafts are accepted again")
    assert client_of().get("/stats")["no_drafts"] != "fault"


def test_an_error_beside_the_server_is_survived(make, client_of):
    """Of an event that the thread of the frames handles, as one of a drafter."""
    proposer = make()
    client_of().get("/stats")  # that thread runs
    core = proposer.service.drafting._core
    handle = core.handle

    def broken(*args):
        core.handle = handle
        raise KeyError("once")

    core.handle = broken
    with capture_logs() as told:
        client_of().get("/stats")
    assert [line["error"] for line in told] == ["KeyError: 'once'"]
    until(lambda: serve(proposer, 60).accepted, "drafts are accepted")


def test_many_errors_end_drafting(make, client_of, path):
    proposer = make()
    breaking(proposer, set(range(3, 1000)))
    with capture_logs() as told:
        serve(proposer, 60)
        after = serve(proposer, 20)
    lines = [line["meaning"] for line in told if line["event"] == "drafting_failed"]
    assert len(lines) == MOST_FAULTS
    assert "until vLLM is restarted" in lines[-1]
    assert after.drafted == 0
    stats = client_of().get("/stats")
    assert stats["no_drafts"] == "fault"
    assert judge_daemon(Found(path, "running", stats)).status == "warn"
    assert "specmesh_engine_healthy 0.0" in metrics(path)


def test_an_address_that_comes_later_is_waited_for(make, client_of, monkeypatch):
    """vLLM goes on without drafts until then."""
    later = [NotThereYet("cannot bind tcp://100.64.0.7:7071", "name an address of this machine")]

    def opened(*args):
        if later:
            raise later.pop()
        return DraftService(*args)

    monkeypatch.setattr("specmesh.vllm.proposer.DraftService", opened)
    monkeypatch.setattr("specmesh.vllm.proposer.BIND_AGAIN_S", 0.01)
    with capture_logs() as told:
        proposer = make()
        assert proposer.propose([[1]]) == [[]]
        until(lambda: proposer.service is not None, "the port is open")
    assert [line["event"] for line in told] == ["waits", "ready"]
    assert client_of().get("/stats")["model"]["name"] == "fake"


def test_step_does_not_wait_for_the_end_of_the_service(make):
    """An unknown call ends drafting, whatever the closing takes or raises."""
    proposer = make()
    service = proposer.service
    released = Event()
    closed = Event()

    def close():
        released.wait(PATIENCE)
        closed.set()

    proposer.service = Mock(close=close)
    with capture_logs() as told:
        assert proposer.propose([[1]], "no array", None) == [[]]
    assert not closed.is_set()
    released.set()
    service.close()
    assert [line["event"] for line in told] == ["no_drafts"]


def test_no_socket(make, path):
    make(no_socket=True)
    assert not path.exists()


def test_the_socket_goes_with_the_server(make, path):
    proposer = make()
    assert path.exists()
    proposer.close()
    assert not path.exists()


@pytest.mark.usefixtures("served")
def test_json_of_stats_is_complete(path):
    """It has the keys of a verifier daemon's, so that programs read both."""
    done = run(path, "stats", "--json")
    named = {"$"} | {f"$.{name}" for name in json.loads(done.stdout)}
    known = {name for name in GOLDEN if name.count(".") < 2 and "[" not in name}
    assert known - named == {"$.kv_cache"}, "vLLM's own"
