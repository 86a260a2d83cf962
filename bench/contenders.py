"""What bench/padded.py compares: specmesh and llama-server, each asked for the same greedy text and timed alike.

llama-server drafts with a model only where --spec-type says so: with --spec-draft-model alone it loads it and does not.
The clock runs from the arrival of the first generated token at the client to that of the last: prompt processing is
left out of both, and what a server says of itself is not used.
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


@dataclass(frozen=True, slots=True)
class Run:
    """One generation. seconds: from the first token's arrival to the last's, in which `timed` tokens came."""

    ids: tuple[int, ...]
    timed: int
    seconds: float
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.timed / self.seconds


Contender = Callable[[list[int], int], Run]
"""Generates so many tokens after a prompt's ids."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything runs, and the models. Cores: the verifier's and the drafter's; llama-server has both."""

    folder: Path
    target: str
    drafter: str
    verifier_core: int
    drafter_core: int


def timed(
    events: Iterable[tuple[list[int], dict[str, Any]]],
    counts: Callable[[dict[str, Any]], tuple[int, int]],
) -> Run:
    """A run from its stream: per event the ids it brings and the rest; `counts`: (drafted, accepted) of its end."""
    ids: list[int] = []
    first = last = 0.0
    at_first = 0
    rest: dict[str, Any] = {}
    for fresh, rest in events:  # noqa: B007 - the last one is read below
        if fresh:
            last = time.perf_counter()
            if not ids:
                first, at_first = last, len(fresh)
            ids += fresh
    return Run(tuple(ids), len(ids) - at_first, last - first, *counts(rest))


@contextmanager
def specmesh(place: Place) -> Iterator[dict[str, Contender]]:
    """Real daemons, one thread and one core each: the verifier alone, and with as many drafts as it thinks pay."""
    common = ["--threads", "1", "--ctx", str(CTX), "--max-sessions", "2", "--gpu-layers", "0"]
    verifier, drafter = ["--model", place.target, *common], ["--model", place.drafter, *common]
    cores: tuple[Cores, Cores] = ({place.verifier_core}, {place.drafter_core})
    with daemons(place.folder, verifier, ["--engine", "llama", *drafter], cores) as client:

        def contender(draft_n: int | str) -> Contender:
            return lambda prompt, tokens: timed(
                _specmesh_events(client, prompt, tokens, draft_n),
                lambda rest: (int(rest["report"]["drafted"]), int(rest["report"]["accepted"])),
            )

        yield {"specmesh alone": contender(0), "specmesh auto": contender("auto")}


def _specmesh_events(
    client: Client, prompt: list[int], tokens: int, draft_n: int | str
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "draft_n": draft_n}
    for chunk in client.complete(body):
        ours: Any = chunk["specmesh"]
        yield ours.get("token_ids", []), ours


def server_options(place: Place, n_max: int | str | None) -> list[str]:
    """llama-server's options: None: no drafts; "default": its own number of them; else --spec-draft-n-max."""
    options = [
        "--model",
        place.target,
        "--threads",
        "1",
        "--threads-batch",
        "1",
        "--ctx-size",
        str(CTX),
    ]
    options += ["--parallel", "1", "--gpu-layers", "0", "--host", "127.0.0.1"]
    if n_max is None:
        return options
    options += ["--spec-draft-model", place.drafter, "--spec-type", "draft-simple"]
    options += [
        "--spec-draft-threads",
        "1",
        "--spec-draft-threads-batch",
        "1",
        "--spec-draft-ngl",
        "0",
    ]
    return options if n_max == "default" else [*options, "--spec-draft-n-max", str(n_max)]


@contextmanager
def llama_servers(
    place: Place, program: Path, settings: list[int | str | None]
) -> Iterator[dict[str, Contender]]:
    """One llama-server per setting, all up at once: those not asked wait on a socket, and share the mapped weights."""
    with ExitStack() as stack:
        ports = {_named(setting): PORT + index for index, setting in enumerate(settings)}
        for setting in settings:
            stack.enter_context(_llama_server(place, program, setting, ports[_named(setting)]))
        yield {name: _server_contender(port) for name, port in ports.items()}


def _named(setting: int | str | None) -> str:
    return "llama-server " + (
        "alone" if setting is None else "default" if setting == "default" else f"n={setting}"
    )


@contextmanager
def _llama_server(
    place: Place, program: Path, setting: int | str | None, port: int
) -> Iterator[None]:
    command = [str(program), *server_options(place, setting), "--port", str(port)]
    log = place.folder / f"llama-server-{port}.log"
    process = start(command, {place.verifier_core, place.drafter_core}, log)
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
    return lambda prompt, tokens: timed(
        _server_events(port, prompt, tokens),
        lambda rest: (
            int(rest["timings"].get("draft_n", 0)),
            int(rest["timings"].get("draft_n_accepted", 0)),
        ),
    )


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
