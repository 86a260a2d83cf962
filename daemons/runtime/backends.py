"""What the API sees of a daemon: one that loads its model, then a verifier or a drafter."""

import os
import time
from collections.abc import Callable

from specmesh import __version__
from specmesh.api.requests import ClientOrder, ModelInfo
from specmesh.daemons.drafter.daemon import DrafterLoop
from specmesh.daemons.runtime.mailbox import Mailbox
from specmesh.daemons.verifier.daemon import Order, VerifierLoop
from specmesh.engines.base import VerifyEngine
from specmesh.errors import Busy, DaemonUnreachable, SpecmeshError, Starting

GRACE = 1.0
"""Seconds after its start in which a drafter's verifier counts as not found yet."""


class Loading:
    """What the API shows before the loop exists. `goes_on` hears of the progress, and says whether to go on."""

    def __init__(self, role: str, goes_on: Callable[[float, int], bool]) -> None:
        self.role = role
        self.share, self.fetched = 0.0, 0
        self._goes_on = goes_on
        self._begun = time.monotonic()

    def progress(self, share: float, fetched: int = 0, /) -> bool:
        """An engine tells how much of its model is loaded, or of the bytes it has downloaded; False asks it to stop."""
        self.share, self.fetched = share, fetched
        return self._goes_on(share, fetched)

    def error(self) -> SpecmeshError:
        if self.fetched:
            so_far = f"{self.fetched / 1e6:.0f} MB so far"
            return Busy(f"the {self.role} is downloading its model ({so_far}): try again when it is here")
        return Starting(f"the {self.role} is loading its model ({self.share:.0%}): try again in a moment")

    def stats(self) -> dict[str, object]:
        return {
            "schema_version": 1,
            "role": self.role,
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._begun, 1),
            "loading": round(self.share, 3),
        }


class VerifierBackend:
    """The API's view of a verifier."""

    role = "verifier"

    def __init__(self, loading: Loading, mailbox: Mailbox[Order]) -> None:
        self._loading, self._mailbox = loading, mailbox
        self._served: ModelInfo | None = None
        self._loop: VerifierLoop | None = None

    def ready(self, loop: VerifierLoop, engine: VerifyEngine) -> None:
        self._served = ModelInfo(engine.info.model, engine.vocabulary)
        self._loop = loop

    @property
    def models(self) -> tuple[str, ...]:
        return (self._served.model,) if self._served is not None else ()

    def not_ready(self) -> SpecmeshError | None:
        return self._loading.error() if self._loop is None else None

    def served(self, name: str) -> ModelInfo:  # noqa: ARG002  (the one model has any name)
        assert self._served is not None, "asked only once ready"
        return self._served

    def submit(self, order: ClientOrder) -> None:
        self._mailbox.put(order)

    def stats(self) -> dict[str, object]:
        return self._loading.stats() if self._loop is None else self._loop.stats.latest


class DrafterBackend:
    """The API's view of a drafter: ready while a verifier is there. `address` says where they are expected."""

    role = "drafter"

    def __init__(self, loading: Loading, mailbox: Mailbox[ClientOrder], address: str) -> None:
        self._loading, self._mailbox, self._address = loading, mailbox, address
        self._loop: DrafterLoop | None = None
        self._ready = 0.0

    def ready(self, loop: DrafterLoop) -> None:
        self._loop, self._ready = loop, time.monotonic()

    @property
    def models(self) -> tuple[str, ...]:
        return self._loop.models if self._loop is not None else ()

    def not_ready(self) -> SpecmeshError | None:
        if self._loop is None:
            return self._loading.error()
        if self._loop.verifier is None:
            if self._loop.refusal is None and time.monotonic() < self._ready + GRACE:
                return Starting(f"the drafter is connecting to {self._address}: try again in a moment")
            return DaemonUnreachable(self._loop.trouble)
        if self._loop.vocabulary is None:
            return Starting("the vocabulary is still being fetched from the verifier: try again in a moment")
        return None

    def served(self, name: str) -> ModelInfo:
        assert self._loop is not None, "asked only once ready"
        return self._loop.served(name)

    def submit(self, order: ClientOrder) -> None:
        self._mailbox.put(order)

    def stats(self) -> dict[str, object]:
        return self._loading.stats() if self._loop is None else self._loop.stats.latest
