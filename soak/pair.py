"""A verifier and a drafter as processes, and a network between them that can fail."""

import signal
from dataclasses import dataclass
from pathlib import Path

from processes import Daemon, Mesh, edited
from proxy import Proxy

from soak.schedule import Fault, Kind, Lane
from specmesh.paths import bundled

GRACE_S = 5
"""Seconds for which a verifier keeps the session of a lost drafter: less than some faults take."""

LAST_LINES = 3
"""Lines of its log that are reported of a daemon that ended by itself."""

TIDY_LINES = """\
import ctypes, gc, threading, time
trim = getattr(ctypes.CDLL(None), 'malloc_trim', lambda _: None)
def tidy():
    while True:
        time.sleep(5)
        gc.collect()
        trim(0)
threading.Thread(target=tidy, daemon=True).start()
"""
ALLOCATOR = "env PYTHONMALLOC=malloc MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=65536"
TIDY = [*ALLOCATOR.split(), *edited(*TIDY_LINES.splitlines())]
"""`specmesh` that returns large blocks at once, and other unused memory every five seconds.

CPython keeps up to 2,000 freed tuples of each length, 2 MB that some 16,000 generations fill, and
allocates memory by the megabyte: both would hide a leak.
"""

DELAY = 0.005
"""Seconds that each way takes per second of the fault: up to a twentieth of a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """The engine and the models of both daemons, and the limits of the texts.

    pool: options of the verifier, whose memory is too small for all clients.
    """

    engine: str
    target: str
    drafter: str
    temperatures: tuple[float, ...]
    longest: int
    options: tuple[object, ...] = ()
    pool: tuple[object, ...] = ()


MODELS = {
    "sim": Models(
        engine="sim",
        target="step_ms=4,row_ms=0.2,n_ctx=2112,cells=2112,host_ids=1000",
        drafter="draft_ms=1,alpha=0.8",
        temperatures=(4.0, 6.0),
        longest=600,
    ),
    "bundled": Models(
        engine="llama",
        target=bundled("target.gguf"),
        drafter=bundled("drafter.gguf"),
        temperatures=(0.8, 1.0),
        longest=100,
        options=("--ctx", 2048),
        pool=("--kv-cache", 4096),
    ),
}


class Pair:
    """One pair. `log` has its past faults, with their real times."""

    def __init__(self, name: str, models: Models, folder: Path) -> None:
        self.name = name
        self.models = models
        self.mesh = Mesh(folder, TIDY)
        self.proxy = Proxy(target=self.mesh.port)
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
        options = ["--engine", models.engine, "--threads", 1, *models.options]
        if lane is Lane.VERIFIER:
            options += ["--model", models.target, "--bind", self.mesh.address]
            options += ["--grace", GRACE_S, "--reproducible", *models.pool]
        else:
            options += ["--model", models.drafter]
            options += ["--connect", f"tcp://127.0.0.1:{self.proxy.port}"]
        self.daemons[lane] = self.mesh.start(lane, *options)

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
        """Note a daemon that ended by itself, and start another."""
        code = self.daemons[lane].process.poll()
        if code is not None:
            last = " | ".join(self.daemons[lane].text().splitlines()[-LAST_LINES:])
            self.died.append(f"{self.name}: the {lane} ended by itself with {code}: {last}")
            self.launch(lane)

    def stop(self) -> None:
        """End both as a service manager does; note exit codes, and tracebacks in logs."""
        for lane in (Lane.DRAFTER, Lane.VERIFIER):
            if lane in self.daemons:
                self.look(lane)
                code = self.daemons[lane].stop()
                if code:
                    self.died.append(f"{self.name}: the stopped {lane} ended with {code}")
        for daemon in self.mesh.daemons:
            count = daemon.text().count("Traceback (most recent call last)")
            if count:
                self.died.append(f"{self.name}: {count} tracebacks in the log {daemon.log.name}")

    def close(self) -> None:
        self.mesh.stop()
        self.proxy.close()
