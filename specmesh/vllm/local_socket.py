"""The local socket beside vLLM's worker: the API of a verifier daemon, without texts.

`specmesh stats`, `ps`, `ping`, `doctor` and Prometheus read it like a daemon's. The loop refuses a
request for a text, and names vLLM's own address in the error.
"""

import asyncio
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import structlog

from specmesh import paths
from specmesh.api.backend import AskStats, ClientOrder, ModelInfo
from specmesh.api.server import Api, serving_api
from specmesh.core.statistics.snapshot import Snapshot
from specmesh.core.text.chat import Tokenizer
from specmesh.daemons.runtime.backend import Loop
from specmesh.errors import SpecmeshError

log = structlog.get_logger("specmesh.vllm")

_CLOSING = 2.0  # seconds that the thread may take to end


class DraftingLoop(Loop, Protocol):
    """The loop beside vLLM's worker."""

    def fault(self) -> SpecmeshError | None:
        """Return why nothing is drafted any more; None while it goes on."""
        ...


class SocketBackend:
    """The API's view of the loop beside vLLM's worker; both share an event loop."""

    role = "verifier"

    def __init__(self, loop: DraftingLoop) -> None:
        """Ask this loop."""
        self._loop = loop

    @property
    def models(self) -> tuple[str, ...]:
        """Return the name of the model."""
        return self._loop.models

    @property
    def tokenizer(self) -> Tokenizer:
        """Raise NotOffered: vLLM makes ids of texts."""
        return self._loop.tokenizer

    def not_ready(self) -> SpecmeshError | None:
        """Return why nothing is drafted any more; vLLM had loaded its model before this began."""
        return self._loop.fault()

    def served(self, name: str) -> ModelInfo:
        """Return the limits and the vocabulary of the model."""
        return self._loop.served(name)

    def submit(self, order: ClientOrder) -> None:
        """Hand an order to the loop, which refuses those for texts."""
        self._loop.mailbox.put(order)

    async def stats(self) -> Snapshot:
        """Return the content of `specmesh stats --json`."""
        answers: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.submit(AskStats(answers.put_nowait))
        return await answers.get()


@contextmanager
def event_loop(path: Path | None, backend: SocketBackend) -> Generator[asyncio.AbstractEventLoop]:
    """Run an event loop on a thread of its own, with the API at a socket.

    path: None for no socket. If it cannot be opened there is a warning, and drafts go on.
    """
    with ExitStack() as ends:
        api = None if path is None else _api_at(path, backend, ends)
        yield ends.enter_context(_bare_loop()) if api is None else api.loop


def _api_at(path: Path, backend: SocketBackend, ends: ExitStack) -> Api | None:
    try:
        ends.enter_context(paths.instance_lock(path))
        return ends.enter_context(serving_api(path, backend))
    except SpecmeshError as error:
        meaning = "`specmesh stats` and `/metrics` do not answer; drafts go on"
        log.warning("no_local_socket", error=str(error), meaning=meaning)
        return None


@contextmanager
def _bare_loop() -> Generator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="io", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSING)
        loop.close()
