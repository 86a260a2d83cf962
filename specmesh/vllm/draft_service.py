"""What runs beside vLLM's worker: the bound port, the thread of its frames, the local socket."""

import asyncio
import platform
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial

import structlog
import zmq

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.sockets import Router, bind_router
from specmesh.security.addresses import bracketed, endpoint, is_free_port
from specmesh.security.curve import Context, ZapGuard
from specmesh.security.keys import KeyFolder, find_keys
from specmesh.vllm.drafting import Drafting
from specmesh.vllm.faults import Faults
from specmesh.vllm.local_socket import SocketBackend, event_loop
from specmesh.vllm.loop import ProposerLoop
from specmesh.vllm.served_model import ServedModel, WorkerPlace
from specmesh.vllm.settings import ProposerSettings

log = structlog.get_logger("specmesh.vllm")

_CLOSING = 2.0  # seconds that the thread may take to end


class DraftService:
    """The port for drafters, and its thread, from construction until `close`.

    drafting: answers vLLM's worker. address: of the port.
    """

    def __init__(
        self,
        settings: ProposerSettings,
        model: ServedModel,
        vocabulary: Vocabulary,
        place: WorkerPlace,
    ) -> None:
        """Bind and serve. Raises SpecmeshError if that cannot be."""
        keys = None if settings.insecure else find_keys(settings.keys)
        with ExitStack() as ends:
            router = _bound(settings, keys, place, ends)
            self._loop = ProposerLoop(platform.node(), router, model, vocabulary, settings)
            path = None if place.engine else settings.socket_path
            io = ends.enter_context(event_loop(path, SocketBackend(self._loop)))
            self._ends = ends.pop_all()
        self.address = router.address
        self.drafting: Drafting = self._loop.drafting
        self._served = asyncio.run_coroutine_threadsafe(self._loop.serve(), io)
        self._served.add_done_callback(partial(note_failure, self.drafting.faults))
        log.info("ready", bind=self.address, encrypted=router.encrypted, model=model.name)

    def close(self) -> None:
        """End the thread, and free the port."""
        self._loop.stop()
        wait([self._served], _CLOSING)
        self._ends.close()


def _bound(
    settings: ProposerSettings, keys: KeyFolder | None, place: WorkerPlace, ends: ExitStack
) -> Router:
    """Return a ROUTER at the address of the settings; each engine has one of its own.

    ends: closes it.
    """
    context: Context = zmq.Context()
    ends.callback(context.term)
    address = settings.bind
    if place.engine and not is_free_port(address):
        host, port = endpoint(address)
        assert port is not None, "settings without a port are refused"
        address = f"tcp://{bracketed(host)}:{port + place.engine}"
    guard = ZapGuard(context, keys) if keys is not None else None
    socket = bind_router(context, address, settings.insecure, guard)
    ends.callback(socket.close, linger=100)
    if guard is not None:
        ends.callback(guard.stop)
    return Router(socket, guard)


def note_failure(faults: Faults, served: "Future[bool]") -> None:
    """Draft nothing any more if the loop has failed, and write a line of the log."""
    error = served.exception()
    if error is not None:
        faults.off = True
        log.error("drafts_ended", error=f"{type(error).__name__}: {error}")
