"""The contenders of bench/padded.py: specmesh and llama-server, with the same texts and clock.

llama-server drafts with a model only if --spec-type is given: with --spec-draft-model only, it
loads the model and does not draft. The clock runs from the arrival of the first generated token at
the client to the arrival of the last. Prompt processing is left out, and so are a server's own
figures.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from live import LOADING_S, command, daemons, free_port, llama_server, running, until

from specmesh.client import Client
from specmesh.errors import DaemonUnreachable

CTX = 1024
PORT = 7410
ALONE = "specmesh alone"
AUTO = "specmesh auto"
BESIDE = "specmesh --draft-model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One generation."""

    ids: tuple[int, ...]
    timed: int  # tokens after the first arrival
    seconds: float  # from the first arrival to the last
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Return tokens per second."""
        return self.timed / self.seconds


Contender = Callable[[list[int], int], Run]
"""Generates so many tokens after a prompt's ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The folder, the models, and the cores of verifier and drafter; llama-server has both.

    threads: of each model of the contenders that have both cores.
    """

    folder: Path
    target: str
    drafter: str
    cores: tuple[int, int]
    threads: int = 1


Rest = dict[str, Any]
Events = Iterator[tuple[list[int], Rest]]
"""The ids and the rest of each event of a stream."""


def timed(events: Events, counts: Callable[[Rest], tuple[int, int]]) -> Run:
    """Return a run from its stream.

    counts: returns (drafted, accepted) for the rest of the last event.
    """
    ids: list[int] = []
    first = 0.0
    last = 0.0
    at_first = 0
    rest: Rest = {}
    for fresh, rest in events:  # noqa: B007 - the last one is read below
        if fresh:
            last = time.perf_counter()
            if not ids:
                first = last
                at_first = len(fresh)
            ids += fresh
    drafted, accepted = counts(rest)
    return Run(
        ids=tuple(ids),
        timed=len(ids) - at_first,
        seconds=last - first,
        drafted=drafted,
        accepted=accepted,
    )


@contextmanager
def specmesh(place: Place) -> Iterator[dict[str, Contender]]:
    """Run real daemons, one thread and one core each: the verifier alone, and adaptive."""
    common = f"--threads 1 --ctx {CTX} --max-sessions 2 --gpu-layers 0 --model".split()
    verifier = [*common, place.target]
    drafter = [*common, place.drafter, "--engine", "llama"]
    first, second = place.cores
    with daemons(place.folder, verifier, drafter, ({first}, {second})) as client:
        yield {
            ALONE: _specmesh_contender(client, 0),
            AUTO: _specmesh_contender(client, "auto"),
        }


@contextmanager
def specmesh_beside(place: Place) -> Iterator[dict[str, Contender]]:
    """Run a verifier with the draft model beside its target, on both cores.

    With more than one thread it is also the verifier alone, asked for no drafts.
    """
    socket = place.folder / "beside.sock"
    address = f"tcp://127.0.0.1:{free_port()}"
    words = command("verifier", log_level="warning", bind=address, socket=socket)
    words += ["--threads", str(place.threads)]
    words += f"--ctx {CTX} --max-sessions 2 --gpu-layers 0 --model".split()
    words += [place.target, "--draft-model", place.drafter]
    with running(words, set(place.cores)):
        client = Client(socket)
        until(lambda: client.health()["status"] == "ok", LOADING_S)

        contenders = {BESIDE: _specmesh_contender(client, "auto")}
        if place.threads > 1:
            contenders[ALONE] = _specmesh_contender(client, 0)
        yield contenders


def _specmesh_contender(client: Client, draft_n: int | str) -> Contender:
    def run(prompt: list[int], tokens: int) -> Run:
        return timed(_specmesh_events(client, prompt, tokens, draft_n), _specmesh_counts)

    return run


def _specmesh_counts(rest: Rest) -> tuple[int, int]:
    report = rest["report"]
    return int(report["drafted"]), int(report["accepted"])


def _specmesh_events(client: Client, prompt: list[int], tokens: int, draft_n: int | str) -> Events:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "draft_n": draft_n}
    for chunk in client.complete(body):
        ours: Any = chunk["specmesh"]
        yield ours.get("token_ids", []), ours


def server_options(place: Place, n_max: int | str | None) -> list[str]:
    """Return llama-server's options.

    n_max: None for no drafts, "default" for its own number, else --spec-draft-n-max.
    """
    count = place.threads
    threads = f"--threads {count} --threads-batch {count} --parallel 1 --gpu-layers 0"
    options = f"{threads} --host 127.0.0.1 --ctx-size {CTX} --model".split()
    options.append(place.target)
    if n_max is None:
        return options
    drafting = f"--spec-type draft-simple --spec-draft-threads {count}"
    drafting += f" --spec-draft-threads-batch {count}"
    options += f"{drafting} --spec-draft-ngl 0 --spec-draft-model".split()
    options.append(place.drafter)
    if n_max != "default":
        options += ["--spec-draft-n-max", str(n_max)]
    return options


@contextmanager
def llama_servers(
    place: Place, program: Path, settings: list[int | str | None]
) -> Iterator[dict[str, Contender]]:
    """Run one llama-server per setting, all at once. Idle ones share the mapped weights."""
    contenders: dict[str, Contender] = {}
    with ExitStack() as stack:
        for port, setting in enumerate(settings, PORT):
            words = [str(program), *server_options(place, setting), "--port", str(port)]
            log = place.folder / f"llama-server-{port}.log"
            healthy = partial(_healthy, port)
            stack.enter_context(llama_server(words, set(place.cores), log, healthy))
            contenders[_named(setting)] = _server_contender(port)
        yield contenders


def _named(setting: int | str | None) -> str:
    if setting is None:
        return "llama-server alone"
    if setting == "default":
        return "llama-server default"
    return f"llama-server n={setting}"


def _healthy(port: int) -> bool:
    with closing(HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False


def _server_contender(port: int) -> Contender:
    return lambda prompt, tokens: timed(_server_events(port, prompt, tokens), _server_counts)


def _server_counts(rest: Rest) -> tuple[int, int]:
    timings = rest["timings"]
    return int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))


def _server_events(port: int, prompt: list[int], tokens: int) -> Events:
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": False,
    }
    headers = {"Content-Type": "application/json"}
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("POST", "/completion", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            answer = response.read()[:200]
            raise DaemonUnreachable(f"llama-server answers {response.status}: {answer!r}")
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                yield event.get("tokens", []), event
