"""A verifier and a drafter as processes, and between them a network that can be troubled."""

import signal
from dataclasses import dataclass
from pathlib import Path

from processes import Daemon, Mesh, edited
from proxy import Proxy

from soak.schedule import Fault, Kind, Lane
from specmesh.paths import bundled

GRACE_S = 5
"""Seconds that a verifier keeps a session whose drafter went away: shorter than some faults, longer than others."""

LAST_LINES = 3
"""Lines of its log that are told of a daemon that has ended by itself."""

TIDY = [
    "env",
    "PYTHONMALLOC=malloc",
    "MALLOC_ARENA_MAX=1",
    "MALLOC_MMAP_THRESHOLD_=65536",
    *edited(
        "import ctypes, gc, threading, time",
        "trim = getattr(ctypes.CDLL(None), 'malloc_trim', lambda _: None)",
        "def tidy():",
        "    while True:",
        "        time.sleep(5)",
        "        gc.collect()",
        "        trim(0)",
        "threading.Thread(target=tidy, daemon=True).start()",
    ),
]
"""`specmesh` that gives back large blocks at once, and every five seconds what else it does not need. CPython keeps up
to 2,000 freed tuples of each length, 2 MB that some 16,000 generations fill, and asks for memory by the megabyte: both
hide what a daemon leaks."""

DELAY = 0.005
"""Seconds that each way takes, for each second that a fault of this kind lasts: up to a twentieth of a second."""


@dataclass(frozen=True, slots=True)
class Models:
    """What both daemons run: an engine, its two models, how hot texts are sampled, and their most tokens."""

    engine: str
    target: str
    drafter: str
    temperatures: tuple[float, ...]
    longest: int
    options: tuple[object, ...] = ()


MODELS = {
    "sim": Models("sim", "step_ms=4,row_ms=0.2", "draft_ms=1,alpha=0.8", (4.0, 6.0), 300),
    "bundled": Models(
        "llama", bundled("target.gguf"), bundled("drafter.gguf"), (0.8, 1.0), 100, ("--ctx", 2048)
    ),
}


class Pair:
    """One pair. `log` are the faults that have befallen it, with their real times."""

    def __init__(self, name: str, models: Models, folder: Path) -> None:
        self.name, self.models = name, models
        self.mesh = Mesh(folder, TIDY)
        self.proxy = Proxy(self.mesh.port)
        self.daemons: dict[Lane, Daemon] = {}
        self.log: list[Fault] = []
        self.died: list[str] = []

    def start(self) -> None:
        self.launch(Lane.VERIFIER)
        self.launch(Lane.DRAFTER)
        self.ready()

    def ready(self) -> None:
        self.daemons[Lane.VERIFIER].ready()
        self.mesh.attached(self.daemons[Lane.DRAFTER].ready())

    def launch(self, lane: Lane) -> None:
        models = self.models
        model, place = models.drafter, ["--connect", f"tcp://127.0.0.1:{self.proxy.port}"]
        if lane is Lane.VERIFIER:
            model, place = (
                models.target,
                ["--bind", self.mesh.address, "--grace", str(GRACE_S), "--reproducible"],
            )
        options = ("--engine", models.engine, "--model", model, "--threads", 1, *models.options)
        self.daemons[lane] = self.mesh.start(lane, *options, *place)

    def begin(self, fault: Fault) -> None:
        if fault.lane is not Lane.NETWORK:
            self.look(fault.lane)
        match fault.kind:
            case Kind.KILL:
                self.daemons[fault.lane].kill()
            case Kind.STOP:
                self.daemons[fault.lane].signal(signal.SIGSTOP)
            case Kind.PARTITION:
                self.proxy.hold()
            case Kind.RESET:
                self.proxy.cut()
            case Kind.DELAY:
                self.proxy.delay = DELAY * fault.seconds

    def end(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.KILL:
                self.launch(fault.lane)
            case Kind.STOP:
                self.daemons[fault.lane].signal(signal.SIGCONT)
            case Kind.PARTITION:
                self.proxy.release()
            case Kind.DELAY:
                self.proxy.delay = 0.0

    def look(self, lane: Lane) -> None:
        """Note it where a daemon has ended that nobody killed, and start another."""
        code = self.daemons[lane].process.poll()
        if code is not None:
            last = " | ".join(self.daemons[lane].text().splitlines()[-LAST_LINES:])
            self.died.append(f"{self.name}: the {lane} ended by itself with {code}: {last}")
            self.launch(lane)

    def stop(self) -> None:
        """End both as a service manager does; note their exit codes, and tracebacks in their logs."""
        for lane in (Lane.DRAFTER, Lane.VERIFIER):
            if lane in self.daemons:
                self.look(lane)
                code = self.daemons[lane].stop()
                if code:
                    self.died.append(
                        f"{self.name}: the {lane} was told to stop and ended with {code}"
                    )
        for daemon in self.mesh.daemons:
            if count := daemon.text().count("Traceback (most recent call last)"):
                self.died.append(f"{self.name}: {count} tracebacks in the log {daemon.log.name}")

    def close(self) -> None:
        self.mesh.stop()
        self.proxy.close()
