"""The real daemons as processes: helpers of the end-to-end tests."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import harness
from harness import PATIENCE, T
from harness.ports import free_port
from harness.truth import simulated
from warm import Forked

from specmesh.client import Client
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.errors import SpecmeshError
from specmesh.security.keys import KeyFolder

SPECMESH = [sys.executable, "-m", "specmesh"]
WITHOUT_THREADS = ("mlx", "ngram")  # which refuse --threads
FORKED = None if sys.platform == "linux" else SPECMESH
"""What runs `specmesh` the fastest: a fork, where a process can be."""

STARTED: "list[Daemon]" = []
"""Every daemon of the tests that run, for showing logs, and for seeing one that died."""

GROWTH = 4 * 2**20
"""Bytes by which memory may differ without anything having grown.

Allocators keep what was freed.
"""

Json = dict[str, Any]  # of a daemon or a command: what is not as a test reads it fails the test


def edited(*lines: str) -> list[str]:
    """Return `specmesh` with these lines of Python before it."""
    program = [*lines, "from specmesh.cli import main", "main()"]
    return [sys.executable, "-c", "\n".join(program)]


def until(condition: Callable[[], T], what: str) -> T:
    """Poll until `condition()` is true and return it.

    Daemons' errors count as not yet, their deaths do not.
    """

    def holds() -> T | None:
        for daemon in STARTED:
            daemon.check()
        with suppress(SpecmeshError):
            return condition()
        return None

    return harness.until(holds, what)


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        """Its stdout, which is one JSON object."""
        return dict(json.loads(self.out))

    def refused(self, code: int, *words: object) -> None:
        """Check that it left with this code, and one line of ours that has these words."""
        assert (self.code, self.out) == (code, ""), self.err
        [line] = [line for line in self.err.splitlines() if not line.startswith("{")]
        assert line.startswith("specmesh: ")
        assert [word for word in words if str(word) not in line] == [], line

    def begins(self, prompt: str) -> None:
        """Check that its stdout is a beginning of the simulated target's own text."""
        text = self.out.removesuffix("\n")
        assert text == sim_text(prompt, len(text))


def flags(options: dict[str, object]) -> list[object]:
    """Return options of a command by their names: max_tokens=5, json=True."""
    words = list[object]()
    for name, value in options.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(value)
    return words


def command(
    *args: object,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    shell: str = "",
    **options: object,
) -> Done:
    """Run `specmesh ARGS OPTIONS` to its end.

    shell: a line of a shell that runs it, as `"$@"`.
    """
    program = ["sh", "-c", shell, "sh", *SPECMESH] if shell else FORKED
    words = [str(word) for word in (*args, *flags(options))]
    with TemporaryFile("w+") as given, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        given.write(stdin or "")
        given.seek(0)
        streams = [given.fileno(), out.fileno(), err.fileno()]
        process = started(program, words, environment(env), streams, cwd)
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read())


def started(
    program: Sequence[str] | None,
    words: list[str],
    env: dict[str, str],
    streams: Sequence[int],
    cwd: Path | None = None,
) -> "subprocess.Popen[bytes] | Forked":
    """Start `specmesh WORDS` by this program, or by a fork if it is None."""
    if program is None:
        return Forked(words, env, streams, str(cwd or "."))
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        [*program, *words], stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd
    )


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment without specmesh's own variables and this user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    return kept | {"XDG_CONFIG_HOME": os.devnull} | (changes or {})


def cache(folder: Path) -> dict[str, str]:
    """Variables that make a process keep its cache in this folder."""
    home = {"HOME": str(folder)} if sys.platform == "darwin" else {}
    return home | {"XDG_CACHE_HOME": str(folder / "cache")}


def runtime(folder: Path) -> dict[str, str]:
    """Variables by which a command finds the sockets in this folder as this user's."""
    if sys.platform == "darwin":
        where = folder / "Library/Application Support/specmesh"
        where.mkdir(parents=True)
        (where / "run").symlink_to(folder)
        return {"HOME": str(folder)}
    (folder / "specmesh").symlink_to(folder)
    return {"XDG_RUNTIME_DIR": str(folder)}


class Daemon:
    """A running verifier or drafter.

    Its stderr goes to `log`. program: the command that runs it; None forks it.
    """

    def __init__(
        self,
        role: str,
        socket_path: Path,
        args: list[object],
        log: Path,
        program: Sequence[str] | None,
    ) -> None:
        self.role = role
        self.socket = socket_path
        self.log = log
        words = [role, "--socket", str(socket_path), *map(str, args)]
        with log.open("ab") as stderr, Path(os.devnull).open("r+b") as null:
            streams = null.fileno(), null.fileno(), stderr.fileno()
            self.process = started(program, words, environment(cache(log.parent)), streams)
        self.client = Client(socket_path)
        self.shown = 0
        self.let_go = False
        STARTED.append(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self) -> "Daemon":
        """Wait until /health is ok."""
        until(
            lambda: self.client.get("/health").get("status") == "ok",
            f"{self.role} ready; its log:\n{self.text()}",
        )
        return self

    def check(self) -> None:
        """Fail if it has ended by itself."""
        code = self.process.poll()
        assert code is None or self.let_go, f"{self.role} exited with {code}:\n{self.text()}"

    def stats(self) -> Json:
        return self.client.get("/stats")

    def verifier(self) -> Json:
        """Return a drafter's view of its first verifier."""
        return dict(self.stats().get("verifiers", [{}])[0])

    def live(self) -> int:
        return int(self.stats()["sessions"]["live"])

    def rejected(self, reason: str) -> int:
        """Return how many of the frames that came were dropped for this reason."""
        return int(self.stats()["wire"]["rejected"].get(reason, 0))

    def has(self, drafter: "Daemon") -> bool:
        peers = self.stats().get("peers", [])
        return any(peer["drafter"].endswith(f":{drafter.pid}") for peer in peers)

    def serves(self) -> bool:
        """Return True if this drafter has a vocabulary; without a model only its log shows it."""
        return bool(self.verifier()["vocabulary"]) or bool(self.events("vocabulary_fetched"))

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self, name: str) -> list[Json]:
        lines = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def event(self, name: str) -> Json:
        """Wait until there is such an event in the log, and only one; return it."""
        [found] = until(lambda: self.events(name), f"{self.role} logs {name}")
        return found

    def idle(self) -> None:
        """Wait until no session lives."""
        until(lambda: not self.live(), f"no session of the {self.role} lives")

    def alone(self) -> None:
        """Wait until a verifier has no drafter."""
        until(lambda: not self.stats()["peers"], "the verifier has no drafter")

    def signal(self, number: int) -> None:
        self.let_go = True
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        self.let_go = True
        return self.process.wait(seconds)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """End it as a service manager does; its exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self.wait()


def descriptors(pid: int) -> int:
    """Return the number of a process's open files, which only Linux shows."""
    return len(list(Path(f"/proc/{pid}/fd").glob("*")))


def memory(pid: int, kind: str) -> int:
    """Return the bytes of VmRSS or VmSize of a process, which only Linux shows."""
    path = Path(f"/proc/{pid}/status")
    if not path.exists():
        return 0
    found = re.search(rf"{kind}:\s+(\d+) kB", path.read_text())
    assert found
    return int(found[1]) * 1024


class Usage:
    """Descriptors and memory of a process when this was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptors = descriptors(pid)
        self._memory = memory(pid, "VmRSS")

    def unchanged(self) -> None:
        """Check that there are no more descriptors than before, and hardly more memory."""
        until(lambda: descriptors(self._pid) <= self._descriptors, "descriptors are closed")
        assert memory(self._pid, "VmRSS") - self._memory < GROWTH


class Mesh:
    """Daemons of one test or module, in a folder of their own.

    `stop` ends them all. program: as `Daemon` has it.
    """

    def __init__(self, folder: Path, program: Sequence[str] | None = SPECMESH) -> None:
        self.folder, self.program = folder, program
        self.port = free_port()
        self.daemons: list[Daemon] = []

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def new_keys(self) -> tuple[str, Path]:
        """Return the option of both daemons for a folder with a new key."""
        folder = KeyFolder(self.folder / "keys")
        folder.new()
        return "--keys", folder.path

    def start(
        self, role: str, *args: object, name: str = "", program: Sequence[str] | None = None
    ) -> Daemon:
        """Start a daemon with these options; does not wait for it."""
        name = name or role
        log = self.folder / f"{len(self.daemons)} {name}.log"
        daemon = Daemon(
            role, self.folder / f"{name[:12]}.sock", list(args), log, program or self.program
        )
        self.daemons.append(daemon)
        return daemon

    def verifier(
        self, model: object = "", *args: object, engine: str = "sim", ready: bool = True, **how: Any
    ) -> Daemon:
        """Start a verifier; `model` is the simulation's settings or a file. how: as for `start`."""
        options = ["--engine", engine, "--model", model or "step_ms=4"]
        if engine not in WITHOUT_THREADS:
            options += ["--threads", 1]
        daemon = self.start("verifier", *options, "--bind", self.address, *args, **how)
        return daemon.ready() if ready else daemon

    def drafter(
        self,
        model: object = "",
        *args: object,
        engine: str = "sim",
        port: int = 0,
        ready: bool = True,
        **how: Any,
    ) -> Daemon:
        """Start a drafter for this mesh's verifier, or for another port (a proxy's)."""
        options: list[object] = [
            "--engine",
            engine,
            "--connect",
            f"tcp://127.0.0.1:{port or self.port}",
        ]
        if engine not in WITHOUT_THREADS:
            options += ["--threads", 1]
        if engine != "ngram":
            options += ["--model", model or "draft_ms=0.5,alpha=0.9"]
        daemon = self.start("drafter", *options, *args, **how)
        return self.attached(daemon.ready()) if ready else daemon

    def cannot_start(self, role: str, *args: object, **how: Any) -> Done:
        """Run a daemon with these options, which ends at once."""
        usual = ["--engine", "sim", "--model", "step_ms=1", "--socket", self.folder / "x.sock"]
        if role == "verifier":
            usual += ["--bind", f"tcp://127.0.0.1:{free_port()}"]
        return command(role, *usual, *args, **how)

    def attached(self, drafter: Daemon) -> Daemon:
        """Wait until the running verifier has this drafter, and that has its vocabulary."""
        for daemon in self.daemons:
            if daemon.role == "verifier" and daemon.process.poll() is None:
                verifier = daemon
        why = f"the verifier sees its drafter; their logs:\n{verifier.text()}\n{drafter.text()}"
        until(lambda: verifier.has(drafter) and drafter.serves(), why)
        return drafter

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.signal(signal.SIGCONT)
            daemon.kill()


def generate(daemon: Daemon, *words: object, **options: Any) -> Done:
    return command("generate", *words, socket=daemon.socket, **options)


class Running:
    """`specmesh WORDS`, still running."""

    def __init__(
        self,
        *words: object,
        env: dict[str, str] | None = None,
        program: Sequence[str] = SPECMESH,
    ) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*program, *map(str, words)], stdout=pipe, stderr=pipe, bufsize=0, env=environment(env)
        )
        self._seen = b""

    def line(self, words: str) -> str:
        assert self.process.stdout is not None
        while words not in (line := self.process.stdout.readline().decode()):
            assert line, f"it ended: {self.end()}"
        return line

    def read(self, size: int) -> "Running":
        assert self.process.stdout is not None
        while len(self._seen) < size:
            more = self.process.stdout.read(size - len(self._seen))
            assert more, f"it ended: {self.end()}"
            self._seen += more
        return self

    def end(self) -> Done:
        out, err = self.process.communicate(timeout=PATIENCE)
        return Done(self.process.returncode, (self._seen + out).decode(), err.decode())


@contextmanager
def rpc_server(
    address: str, *options: str, program: Sequence[str] = SPECMESH
) -> "Iterator[Running]":
    """Run `specmesh rpc-server` at an address until the end of the context."""
    words = ("rpc-server", "--bind", address, "--threads", 1, *options)
    running = Running(*words, program=program)
    try:
        yield running
    finally:
        running.process.kill()
        running.end()


def generating(daemon: Daemon, *words: object, **options: object) -> Running:
    return Running("generate", *words, *flags({"socket": daemon.socket} | options))


def body(prompt: str | list[int], max_tokens: int, **more: object) -> Json:
    """Return a greedy completion's body, whose text is computed anew.

    The prefix cache was computed in other widths.
    """
    greedy = {"temperature": 0, "cache_prompt": False}
    return {"prompt": prompt, "max_tokens": max_tokens, **greedy, **more}


class Stream:
    """A streamed completion in this process, begun at once, with its text and rounds so far."""

    def __init__(self, daemon: Daemon, request: Json) -> None:
        self._request = request
        self._chunks: Iterator[Json] = daemon.client.complete(request)
        self.text = ""
        self.ids: list[int] = []
        self.accepted: list[int] = []
        self.finish: str | None = None
        self.result: Json = {}
        next(self._chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._chunks.close()  # type: ignore[attr-defined]

    def checked(self) -> "Stream":
        """Check that the text is the simulated target's own: the beginning so far, or all of it."""
        count = len(self.ids)
        if self.finish is not None:
            count = self._request["max_tokens"]
        assert self.text == sim_text(self._request["prompt"], count)
        return self

    def read(self, rounds: int = 0, *, while_: Callable[[], bool] | None = None) -> "Stream":
        """Read this many rounds, or as long as `while_()` holds, or to the end."""
        known = len(self.accepted)
        for chunk in self._chunks:
            choice, told = chunk["choices"][0], chunk["specmesh"]
            self.text += choice["text"]
            self.finish = choice["finish_reason"]
            if "report" in told:
                self.result = told
            if "accepted" in told:
                self.ids += told["token_ids"]
                self.accepted.append(told["accepted"])
            enough = rounds and len(self.accepted) >= known + rounds
            if enough or (while_ and not while_()):
                break
        return self

    def drafted(self, count: int) -> None:
        """Read on until so many more drafts stood."""
        known = len(self.accepted)
        self.read(while_=lambda: sum(self.accepted[known:]) < count)
        assert sum(self.accepted[known:]) >= count, "the text has ended"


def complete(daemon: Daemon, request: Json) -> Stream:
    with Stream(daemon, request) as stream:
        return stream.read()


def writes(daemon: Daemon, prompt: str, max_tokens: int, **more: object) -> Stream:
    """Check that a daemon's greedy completion is the simulated target's own text."""
    return complete(daemon, body(prompt, max_tokens, **more)).checked()


def by_drafters(report: Json) -> tuple[int, int]:
    """Return the drafts of drafters in a report, and how many of them were accepted."""
    counts = report["by_source"].get("remote", {"drafted": 0, "accepted": 0})
    return counts["drafted"], counts["accepted"]


def warm(verifier: Daemon) -> None:
    """Have a verifier make what it makes once, so that its memory grows by nothing else.

    It would make what grammars need after some seconds without requests.
    """
    complete(verifier, body("All", 8, response_format={"type": "json_object"}))


def drafted(daemon: Daemon, request: Json) -> Stream:
    """A completion some of whose drafts stood.

    A drafter that had no processor for as long as a short text takes has drafted nothing for it, so
    the text is asked for again, and must be the same.
    """
    streams = [complete(daemon, request)]

    def stands() -> bool:
        if not sum(streams[-1].accepted):
            streams.append(complete(daemon, request))
        return sum(streams[-1].accepted) > 0

    until(stands, "drafts stand")
    assert all(stream.ids == streams[0].ids for stream in streams)
    return streams[-1]


def sim_ids(prompt: str, count: int, params: SamplingParams | None = None) -> list[int]:
    """Return the simulated target's own text, the truth of every test of it."""
    return simulated(list(prompt.encode()), count, params)


def sim_text(prompt: str, count: int, params: SamplingParams | None = None) -> str:
    return bytes(sim_ids(prompt, count, params)).decode("utf-8", "replace")
