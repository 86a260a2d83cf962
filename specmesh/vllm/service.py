"""What runs beside vLLM's worker: the bound port, and the thread of its frames."""

import asyncio
import platform
import threading
from concurrent.futures import Future
from contextlib import ExitStack

import structlog
import zmq

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.sockets import Router, bind_router
from specmesh.security.addresses import bracketed, endpoint
from specmesh.security.curve import Context, ZapGuard
from specmesh.security.keys import KeyFolder, find_keys
from specmesh.vllm.drafting import Drafting
from specmesh.vllm.loop import ProposerLoop
from specmesh.vllm.settings import ProposerSettings
from specmesh.vllm.target import Place, ServedModel

log = structlog.get_logger("specmesh.vllm")

CLOSING = 2.0  # seconds that the thread may take to end


class Service:
    """The port for drafters, and its thread, from construction until `close`.

    drafting: answers vLLM's worker. address: of the port.
    """

    def __init__(
        self,
        settings: ProposerSettings,
        model: ServedModel,
        vocabulary: Vocabulary,
        place: Place,
    ) -> None:
        """Bind and serve. Raises SpecmeshError if that cannot be."""
        self._ends = ExitStack()
        keys = None if settings.insecure else find_keys(settings.keys)
        router = self._bound(settings, keys, place)
        self.address = router.address
        self._loop = ProposerLoop(platform.node(), router, model, vocabulary, settings)
        self.drafting: Drafting = self._loop.drafting
        self._ended: Future[bool] = Future()
        self._thread = threading.Thread(target=self._serve, name="specmesh", daemon=True)
        self._thread.start()
        log.info("ready", bind=self.address, encrypted=router.encrypted, model=model.name)

    def close(self) -> None:
        """End the thread, and free the port."""
        self._loop.stop()
        self._thread.join(CLOSING)
        self._ends.close()

    def _bound(self, settings: ProposerSettings, keys: KeyFolder | None, place: Place) -> Router:
        """Return a ROUTER at the address of the settings; each engine has a port of its own."""
        context: Context = zmq.Context()
        self._ends.callback(context.term)
        host, port = endpoint(settings.bind)
        if port:
            port += place.engine
        guard = ZapGuard(context, keys) if keys is not None else None
        address = f"tcp://{bracketed(host)}:{port or '*'}"
        socket = bind_router(context, address, settings.insecure, guard)
        self._ends.callback(socket.close, linger=100)
        if guard is not None:
            self._ends.callback(guard.stop)
        return Router(socket, guard)

    def _serve(self) -> None:
        try:
            self._ended.set_result(asyncio.run(self._loop.serve()))
        except BaseException as error:  # noqa: BLE001 - vLLM goes on without drafts
            self._ended.set_exception(error)
            log.error("drafts_ended", error=f"{type(error).__name__}: {error}")
