"""The API's backend in the process of a daemon."""

import asyncio
import os
import time
from typing import Protocol

from specmesh import __version__
from specmesh.api.backend import AskStats, ClientOrder, ModelInfo
from specmesh.core.statistics.snapshot import LoadingSnapshot, Snapshot
from specmesh.core.text.chat import Tokenizer
from specmesh.daemons.runtime.loading import Loading
from specmesh.errors import SpecmeshError, Starting


class Orders(Protocol):
    """A mailbox that takes the API's orders."""

    def put(self, item: ClientOrder, /) -> None:
        """Add an order; from any thread."""
        ...


class Loop(Protocol):
    """The loop of either daemon, as the API needs it."""

    @property
    def mailbox(self) -> Orders:
        """Return the mailbox for orders."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the models."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the target's tokenizer; raise NotOffered at a drafter."""
        ...

    def served(self, name: str, /) -> ModelInfo:
        """Return the model of this name; raise SpecmeshError if it is not served."""
        ...


class LoopBackend:
    """The API's view of a daemon; `loop` is None while the model loads."""

    def __init__(self, role: str, loading: Loading) -> None:
        self.role = role
        self._loading = loading
        self.loop: Loop | None = None

    @property
    def _running(self) -> Loop:
        assert self.loop is not None, "callers wait until it is ready"
        return self.loop

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the models."""
        return self.loop.models if self.loop is not None else ()

    def not_ready(self) -> SpecmeshError | None:
        """Return why no request can be served; None if one can."""
        if self.loop is None and self._loading.waiting_for:
            return Starting(f"the {self.role} waits: {self._loading.waiting_for}", "see its log")
        if self.loop is None:
            loading = f"the {self.role} is loading its model ({self._loading.share:.0%})"
            return Starting(loading, "try again in a moment")
        try:
            self.loop.served("")
        except SpecmeshError as error:
            return error
        return None

    def served(self, name: str) -> ModelInfo:
        """Return the model of this name; raise SpecmeshError if it is not served."""
        return self._running.served(name)

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the target's tokenizer; raise NotOffered at a drafter."""
        return self._running.tokenizer

    def submit(self, order: ClientOrder) -> None:
        """Hand an order to the daemon's loop."""
        self._running.mailbox.put(order)

    async def stats(self) -> Snapshot:
        """Return the content of `specmesh stats --json`."""
        if self.loop is None:
            return LoadingSnapshot(
                role=self.role,
                version=__version__,
                pid=os.getpid(),
                uptime_s=round(time.monotonic() - self._loading.begun, 1),
                loading=round(self._loading.share, 3),
                waiting_for=self._loading.waiting_for or None,
            )
        answers: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.submit(AskStats(answers.put_nowait))
        return await answers.get()
