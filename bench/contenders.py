"""The contenders of bench/padded.py: specmesh and llama-server, with the same texts and clock.

llama-server drafts with a model only if --spec-type is given: with --spec-draft-model only, it
loads the model and does not draft. The clock runs from the arrival of the first generated token at
the client to the arrival of the last. Prompt processing is left out, and so are a server's own
figures.
"""

import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live import Cores, daemons, start, until

from specmesh.client import Client
from specmesh.errors import DaemonUnreachable

CTX = 1024
PORT = 7410


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


@dataclass(frozen=True, slots=True)
class Place:
    """The folder, the models, and the cores of verifier and drafter; llama-server has both."""

    folder: Path
    target: str
    drafter: str
    cores: tuple[int, int]


def timed(
    events: Iterable[tuple[list[int], dict[str, Any]]],
    counts: Callable[[dict[str, Any]], tuple[int, int]],
) -> Run:
    """Return a run from its stream.

    events: ids and the rest of each event.
    counts: returns (drafted, accepted) for the rest of the last event.
    """
    ids: list[int] = []
    first = 0.0
    last = 0.0
    at_first = 0
    rest: dict[str, Any] = {}
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
    cores: tuple[Cores, Cores] = ({place.cores[0]}, {place.cores[1]})
    with daemons(place.folder, verifier, drafter, cores) as client:

        def contender(draft_n: int | str) -> Contender:
            return lambda prompt, tokens: timed(
                _specmesh_events(client, prompt, tokens, draft_n), _specmesh_counts
            )

        yield {"specmesh alone": contender(0), "specmesh auto": contender("auto")}


def _specmesh_counts(rest: dict[str, Any]) -> tuple[int, int]:
    report = rest["report"]
    return int(report["drafted"]), int(report["accepted"])


def _specmesh_events(
    client: Client, prompt: list[int], tokens: int, draft_n: int | str
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "draft_n": draft_n}
    for chunk in client.complete(body):
        ours: Any = chunk["specmesh"]
        yield ours.get("token_ids", []), ours


def server_options(place: Place, n_max: int | str | None) -> list[str]:
    """Return llama-server's options.

    n_max: None for no drafts, "default" for its own number, else --spec-draft-n-max.
    """
    threads = "--threads 1 --threads-batch 1 --parallel 1 --gpu-layers 0"
    options = f"{threads} --host 127.0.0.1 --ctx-size {CTX} --model".split()
    options.append(place.target)
    if n_max is None:
        return options
    drafting = "--spec-type draft-simple --spec-draft-threads 1 --spec-draft-threads-batch 1"
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
    with ExitStack() as stack:
        ports = {_named(setting): PORT + index for index, setting in enumerate(settings)}
        for setting in settings:
            stack.enter_context(_llama_server(place, program, setting, ports[_named(setting)]))
        yield {name: _server_contender(port) for name, port in ports.items()}


def _named(setting: int | str | None) -> str:
    if setting is None:
        return "llama-server alone"
    if setting == "default":
        return "llama-server default"
    return f"llama-server n={setting}"


@contextmanager
def _llama_server(
    place: Place, program: Path, setting: int | str | None, port: int
) -> Iterator[None]:
    command = [str(program), *server_options(place, setting), "--port", str(port)]
    log = place.folder / f"llama-server-{port}.log"
    process = start(command, set(place.cores), log)
    try:
        until(lambda: _healthy(port) or process.poll() is not None, 300.0)
        if process.poll() is not None:
            raise SystemExit(f"llama-server ended:\n{log.read_text(errors='replace')[-2000:]}")
        yield
    finally:
        process.terminate()
        process.wait(15)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _server_contender(port: int) -> Contender:
    return lambda prompt, tokens: timed(_server_events(port, prompt, tokens), _server_counts)


def _server_counts(rest: dict[str, Any]) -> tuple[int, int]:
    timings = rest["timings"]
    return int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))


def _server_events(
    port: int, prompt: list[int], tokens: int
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "stream": True,
        "return_tokens": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        text = json.dumps(body | {"cache_prompt": False})
        connection.request("POST", "/completion", text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise DaemonUnreachable(
                f"llama-server answers {response.status}: {response.read()[:200]!r}"
            )
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                yield event.get("tokens", []), event
    finally:
        connection.close()
