"""Reports of both daemons: fields of stats, shares of cores, lines of the log."""

import os

import structlog

from specmesh import __version__
from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.events import Noted
from specmesh.core.fields import Json
from specmesh.core.statistics.daemon import DaemonFacts
from specmesh.engines.base import DraftEngine, VerifyEngine
from specmesh.host import host_id, physical_cores

log = structlog.get_logger("specmesh")


def facts(
    engine: VerifyEngine | DraftEngine, model: Json, address: str, *, encrypted: bool
) -> DaemonFacts:
    """Return the fields of stats about this process."""
    return DaemonFacts(
        version=__version__,
        pid=os.getpid(),
        model=model,
        address=address,
        encrypted=encrypted,
        offloaded_bytes=engine.offloaded_bytes,
    )


def thread_share(
    engine: VerifyEngine | DraftEngine, *, drafter: bool, explicit: bool
) -> ThreadShare:
    """Return the share of the host's cores that this process's engine uses; 0 off the CPU.

    Threads do not follow the load if they are `explicit`, or if the target is reproducible: the
    sums of some kernels depend on them.
    """
    info = engine.info
    reproducible = info.capabilities.width is not None
    follows = info.threads > 0 and not explicit and not reproducible
    return ThreadShare(info.threads, physical_cores(), host_id(), drafter=drafter, follows=follows)


def note(noted: Noted | None) -> None:
    """Write a line of the log, if there is one."""
    if noted is not None:
        getattr(log, noted.level)(noted.name, **noted.fields)
