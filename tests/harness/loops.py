"""Both daemons on threads of this process, and the other end of the wire under a test's control.

Only here these tests meet the daemons' loops: a change of the loops ends at `Bench` and `Running`.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import zmq

from harness import PATIENCE, until
from harness.ports import free_address
from harness.truth import simulated
from specmesh.api import backend as api
from specmesh.config import DrafterSettings, ModelSettings, VerifierSettings
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.requests import Failed, Finished, Request, Tokens
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.statistics.snapshot import as_json
from specmesh.daemons.drafter.daemon import DrafterLoop
from specmesh.daemons.link.dealer import Route
from specmesh.daemons.link.sockets import bind_router
from specmesh.daemons.verifier.daemon import VerifierLoop
from specmesh.engines.sim import SimDrafter, SimSettings, SimVerifier
from specmesh.errors import ConfigError, EngineError, SpecmeshError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

PROMPT = tuple(b"to be or not")
MODEL = ModelSettings(engine="sim", model="step_ms=1")


class Hearing:
    """A client that keeps its events."""

    def __init__(self):
        self._events = queue.SimpleQueue()
        self.ids = []

    def on_event(self, event):
        self._events.put(event)

    def empty(self):
        return self._events.empty()

    def next(self):
        event = self._events.get(timeout=PATIENCE)
        if isinstance(event, Tokens):
            self.ids += event.ids
        return event

    def end(self):
        while not isinstance(event := self.next(), Finished | Failed):
            pass
        return event

    def whole(self, count, prompt=PROMPT):
        """How it ends, with so many ids, which are the target's own."""
        end = self.end()
        assert isinstance(end, Finished), end
        assert self.ids == truth(count, prompt)
        return end

    def heard(self, count):
        while len(self.ids) < count:
            self.next()

    def error(self):
        end = self.end()
        assert isinstance(end, Failed), end
        return end.error


class Flaky(SimVerifier):
    """A target that fails from a chosen position on, and whose text is known.

    settings: SimSettings' fields.
    """

    fail_from = 10**9

    def __init__(self, guests=0, **settings):
        super().__init__(SimSettings(**settings), guests)

    def decode(self, spans):
        if any(span.position >= self.fail_from for span in spans):
            raise EngineError("out of memory")
        return super().decode(spans)

    def pace(self, step_ms):
        """From now on a step takes so many milliseconds."""
        self.settings = replace(self.settings, step_ms=step_ms)


class SlowReader(Flaky):
    """A target that reads some texts, at most 9 bytes of each, once it may.

    is_slow: True for a text that has to wait; by default each one has.
    reading: the first of them waits.
    order: the beginnings of all texts.
    """

    def __init__(self, is_slow=bool, **settings):
        super().__init__(**settings)
        self.is_slow = is_slow
        self.reading = threading.Event()
        self.go_on = threading.Event()
        self.order = []

    def encode(self, text, *, special=True):
        self.order.append(text[:2])
        if self.is_slow(text):
            self.reading.set()
            assert self.go_on.wait(PATIENCE)
        return super().encode(text[:9])

    def chat_text(self, messages, *_, **__):
        return "".join(message.content for message in messages)


def truth(count, prompt=PROMPT):
    return simulated(prompt, count)


def request(max_tokens=20, draft_n=4, *, ids=PROMPT):
    params = SessionParams(SamplingParams(), max_tokens, draft_n=draft_n)
    return Request(None, tuple(ids), params)


class Bench:
    """Loops on threads of their own; `close` stops them all and gives their errors."""

    def __init__(self):
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.address = free_address()
        self._ends = []
        self.errors = queue.SimpleQueue()

    def verifier(
        self,
        engine=None,
        max_queue=256,
        drain=10.0,
        suffix_cache=0,
        **limits,
    ):
        engine = engine or Flaky()
        router = self._bound()
        settings = VerifierSettings(
            model=MODEL,
            socket=Path(),
            bind=self.address,
            max_queue=max_queue,
            drain=drain,
            suffix_cache=suffix_cache,
        )
        loop = VerifierLoop("v", router, engine, StepCosts(), settings, **limits)
        return self._run(loop, lambda: router.close(linger=100))

    def _bound(self):
        """Return a ROUTER at the address, once libzmq has closed the one before."""
        bound = []

        def tried():
            with suppress(ConfigError):
                bound.append(bind_router(self.context, self.address, insecure=False))
            return bool(bound)

        until(tried, "the address is free")
        return bound[0]

    def drafter(
        self,
        engine=None,
        addresses=(),
        *,
        insecure=False,
    ):
        """A drafter for the verifier here, or for those at `addresses`."""
        engine = engine or SimDrafter(SimSettings(alpha=0.9))
        connect = tuple(addresses) or (self.address,)
        routes = [Route(self.context, address, insecure) for address in connect]
        settings = DrafterSettings(model=MODEL, socket=Path(), connect=connect, drain=0.0)
        return self._run(DrafterLoop("d", routes, engine, settings), lambda: None)

    def pair(self, engine=None, **limits):
        """A verifier and a drafter that know each other."""
        verifier = self.verifier(engine, **limits)
        drafter = self.drafter()
        attach(verifier, drafter)
        return verifier, drafter

    def router(self, address=None):
        """Return a verifier under the test's control."""
        made = Scripted(bind_router(self.context, address or self.address, insecure=False))
        self._ends.append(made.socket.close)
        return made

    def dealer(self, *, known=True):
        """Return a drafter under the test's control, which is connected and usually welcome."""
        made = ScriptedDrafter(Route(self.context, self.address).open())
        self._ends.append(lambda: made.socket.close(linger=0))
        made.connected()
        if known:
            made.hello()
            made.expect(m.Welcome)
        return made

    def _run(self, loop, close):
        def run():
            try:
                asyncio.run(loop.serve())
            except SpecmeshError as error:
                self.errors.put(error)

        thread = threading.Thread(target=run, name="loop")
        thread.start()
        running = Running(loop, thread, close)
        self._ends.append(running.end)
        return running

    def end(self, running):
        self._ends.remove(running.end)
        running.end()

    def close(self):
        for end in reversed(self._ends):
            end()
        self.context.destroy(linger=0)


@dataclass
class Running:
    _loop: VerifierLoop | DrafterLoop
    _thread: threading.Thread
    _close: Callable[[], None]

    def ask(self, what, tenant=(), account=None):
        client = Hearing()
        self._loop.mailbox.put(api.Submit([(what, client)], tenant, account))
        return client

    def cancel(self, client):
        self._loop.mailbox.put(api.Cancel(client))

    def pause(self, client, *, paused=True):
        """Say that a client reads nothing, or that it reads again."""
        self._loop.mailbox.put(api.PauseClient(client, paused))

    def stats(self):
        """Return /stats."""
        said = queue.SimpleQueue()
        self._loop.mailbox.put(api.AskStats(said.put))
        return as_json(said.get(timeout=PATIENCE))

    def stuck_after(self, seconds):
        """From now on a step that lasts so long is stuck."""
        self._loop._core.patience = seconds

    def dozes(self, seconds):
        self._loop.doze = seconds

    @property
    def progress(self):
        return self._loop.progress

    @property
    def connected(self):
        return bool(self._loop.models)

    def joins(self):
        """Wait until a drafter is welcome."""
        until(lambda: not self.trouble, "it is welcome")

    @property
    def trouble(self):
        """Why it serves nobody now."""
        try:
            self._loop.served("")
        except SpecmeshError as error:
            return str(error)
        return ""

    def stop(self):
        self._loop.stop()
        self._loop.mailbox.put(api.Cancel(Hearing()))
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the loop does not end"

    def end(self):
        self.stop()
        self._close()
        self._loop.mailbox.close()


class Scripted:
    """A ROUTER under the test's control; `peer` is the latest sender."""

    def __init__(self, socket):
        self.socket = socket
        self.peer = []

    def on_event(self, seconds=PATIENCE):
        """Return the next message, or None if none comes."""
        if not self.socket.poll(max(int(1e3 * seconds), 0)):
            return None
        *self.peer, frame = self.socket.recv_multipart()
        return decode(frame)

    def expect(self, *kinds):
        """The next message of these kinds; others are skipped."""
        deadline = time.monotonic() + PATIENCE
        while (message := self.on_event(deadline - time.monotonic())) is not None:
            if isinstance(message, kinds):
                return message
        raise AssertionError(f"none of {kinds} came")

    def say(self, *messages):
        for message in messages:
            self.raw(encode(message))

    def welcomes(self, **changes):
        """Answer a drafter's HELLO."""
        self.expect(m.Hello)
        self.say(welcome(**changes))

    def opens(self, session, ids):
        """Have a drafter draft for a session of somebody else, which begins with these ids."""
        opened = m.Opened(session, 0, len(ids), {"temperature": 0})
        self.say(opened, m.Sync(session, 0, 0, tuple(ids), 4))

    def ping(self, number, **fields):
        """Send a PING and return the answer to it."""
        self.say(m.Ping(number, **fields))
        while (pong := self.expect(m.Pong)).number != number:
            pass
        return pong

    def raw(self, *parts):
        self.socket.send_multipart([*self.peer, *parts])


class ScriptedDrafter(Scripted):
    """A DEALER under the test's control.

    truth: the text so far, prompt included. answers: whether it answers each PING. no_drafts: the
    reason for which it drafts nothing, which its PONG has.
    """

    def __init__(self, socket):
        super().__init__(socket)
        self.truth = []
        self.answers = True
        self.no_drafts = ""

    def connected(self):
        assert self.socket.poll(int(1e3 * PATIENCE), zmq.POLLOUT), "no connection"

    def hello(self, name="scripted"):
        self.say(hello(name))

    def on_event(self, seconds=PATIENCE):
        message = super().on_event(seconds)
        match message:
            case m.Ping(number) if self.answers:
                self.say(m.Pong(number, no_drafts=self.no_drafts))
            case m.Sync(_, base, _, ids) | m.Truth(_, base, _, ids):
                self.truth[base:] = ids
        return message


def attach(verifier, drafter):
    drafter.joins()
    until(lambda: verifier.stats()["peers"], "the verifier has its drafter")


def ask_for(ref, prompt="", *, max_tokens=20, ids=()):
    options = {"max_tokens": max_tokens, "temperature": 0, "draft_n": 0}
    return m.Open(ref=ref, prompt=prompt, options=options, ids=list(ids))


def hello(name="scripted", **changes):
    made = m.Hello(
        drafter=name, engine="sim", model="", vocab_fingerprint="", n_vocab=0, n_ctx=4096
    )
    return replace(made, **changes)


def welcome(**changes):
    vocabulary = Flaky().vocabulary
    made = m.Welcome(
        verifier="v",
        model="sim-target",
        model_hash="",
        vocab_fingerprint=vocabulary.fingerprint(),
        n_vocab=len(vocabulary),
        n_ctx=8192,
        end_ids=[255],
    )
    return replace(made, **changes)


def welcomed(
    bench,
    engine=None,
    *,
    addresses=(),
    insecure=False,
    **changes,
):
    """A scripted verifier and a drafter it has welcomed."""
    router = bench.router()
    drafter = bench.drafter(engine, addresses, insecure=insecure)
    router.welcomes(**changes)
    drafter.joins()
    return router, drafter
