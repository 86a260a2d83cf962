"""The verifier's clients and its core, each of which gets the other's events late."""

import random
from collections import deque
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import Step
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Failed, Finished, Reply, Request, Started, Tokens
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.clients import Clients, Encode
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.target import Target
from specmesh.errors import Busy, EngineError, RequestError

LIMITS = TargetLimits(64, 8, frozenset({7}), max_drafts=2)
GRACE = 0.5
PROMPT = (1, 2, 3)
POLICY = solve(
    PolicyInputs(
        steps=(0.03, 0.03), rates=(0.5, 0.5), interval=0.01, restart=0.03, undrafted_s=0.03
    )
)


class Client:
    """Takes events: one end at most, and nothing after it."""

    def __init__(self):
        self.ids = []
        self.over = False

    def on_event(self, event):
        assert not self.over, event
        match event:
            case Started(_, _, prompt_ids, _):
                assert prompt_ids == PROMPT
            case Tokens(ids):
                self.ids += ids
            case Finished() | Failed():
                self.over = True


NOTHING = {"allows.return_value": False, "count_allowed.return_value": 0, "forced.return_value": ()}
SPENT_GRAMMAR = Mock(Constraint, complete=False, exhausted=None, **NOTHING)
SPENT_GRAMMAR.allowed.side_effect = RequestError("too much")  # as soon as a row is masked


class World:
    """Both sides, and the events and effects between them.

    encoding: openings, each with whether its encoding is under way.
    asked: clients, each with its drafter.
    known: pairs of a drafter and a session that it knows.
    """

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.now = 0.0
        self.events = deque()
        self.effects = deque()
        self.encoding = []
        target = Target(
            limits=LIMITS,
            costs=StepCosts(),
            slots=KVSlots(3, "whole", 0, guests=2, n_ctx=LIMITS.n_ctx),
            n_batch=16,
            max_sessions=3,
            guests=2,
        )
        self.core = VerifierCore(target, grace=GRACE)
        self.step = None
        self.clients = Clients(LIMITS, 3, 4)
        self.asked = []
        self.there = set()
        self.known = []
        self.stopped_with = None

    def tell(self, event):
        if isinstance(event, vev.Opening):
            assert self.stopped_with is None, "nothing new begins"
            assert event.client in self.clients.requests, "nothing begins that was withdrawn"
        self.events.append((event, self.now))

    def serve(self, effects):
        for effect in effects:
            match effect:
                case Reply(client, event):
                    client.on_event(event)
                case Encode(opening):
                    self.encoding.append((opening, self.rng.random() < 0.5))
                case vev.Opening() | vev.ClientLeft() | vev.ClientPaused():
                    self.tell(effect)

    # --- things that may happen

    def ask(self):
        owner = self.rng.choice((None, *self.there))
        name = self.rng.choice(("", "a", "b", "c"))
        generated = ()
        if name:
            generated = tuple(self.rng.choices(range(7), k=self.rng.choice((0, 0, 2, 9))))
        params = SessionParams(SamplingParams(), self.rng.choice((0, 1, 9)), draft_n=None)
        ids = self.rng.choice((PROMPT, PROMPT, None))
        named_only = bool(name) and self.rng.random() < 0.2
        request = Request("text", ids, params, id=name, generated=generated, named_only=named_only)
        client = Client()
        self.asked.append((client, owner))
        ref = len(self.asked)
        tenant = (owner, ref) if owner else (self.rng.choice("ab"), self.rng.choice((1, 2)))
        self.serve(self.clients.open(request, client, owner=owner, ref=ref, tenant=tenant))

    def cancel(self):
        if not self.asked:
            return
        gone, owner = self.rng.choice(self.asked)

        def is_gone(asked):
            return asked.client is gone and not (owner and asked.session)

        self.serve(self.clients.cancel(is_gone))

    def pause(self):
        """Have a client, or a client of a drafter, stop to read or go on."""
        paused = self.rng.random() < 0.5
        if self.asked:
            client, _ = self.rng.choice(self.asked)
            self.serve(self.clients.pause(client, paused=paused))
        if self.known:
            drafter, session = self.rng.choice(self.known)
            self.tell(vev.SessionPaused(drafter, session, paused))

    def read_on(self):
        """Have all clients read."""
        for client, _ in self.asked:
            self.serve(self.clients.pause(client, paused=False))
        for drafter, session in self.known:
            self.tell(vev.SessionPaused(drafter, session, paused=False))

    def encode(self):
        if self.encoding:
            opening, under_way = self.encoding.pop(self.rng.randrange(len(self.encoding)))
            constraint = SPENT_GRAMMAR if self.rng.random() < 0.2 else None
            done = replace(opening, ids=PROMPT, n_prompt=len(PROMPT), constraint=constraint)
            if self.rng.random() < 0.2:
                self.serve(self.clients.refuse(opening.client, EngineError("no text")))
            elif under_way or opening.client in self.clients.requests:
                self.serve(self.clients.encoded(done))

    def drafter(self):
        drafter = self.rng.choice((b"x", b"y"))
        if drafter not in self.there:
            self.there.add(drafter)
            self.tell(vev.DrafterJoined(drafter, 64))
            return
        self.there.discard(drafter)
        self.clients.abandon(drafter)
        self.tell(vev.DrafterLeft(drafter, may_return=self.rng.random() < 0.8))

    def close(self):
        """Have a drafter close a session that it knows."""
        if self.known:
            drafter, session = self.rng.choice(self.known)
            if drafter in self.there:
                self.tell(vev.SessionClosed(drafter, session))

    def solved(self):
        """Give a policy to a session that may be over."""
        drafter = self.rng.choice((b"x", b"y", None))
        self.tell(vev.Solved(self.rng.randrange(1, 40), drafter, POLICY))

    def turn(self):
        """Have the core take all events, during a step or after it, and begin or end a step."""
        if self.rng.random() < 0.5:
            self._take_events()
        if self.step is not None:
            failed = self.rng.random() < 0.1
            result = EngineError("out of memory") if failed else self._rows()
            self.effects += self.core.finish(self.step, result, self.now, self.now)
        self._take_events()
        step = self.core.next_step(self.now)
        self.step = step if isinstance(step, Step) else None
        if self.step is None:
            self.effects += self.core.handle(vev.Signal.TIME_UP, self.now)

    def _take_events(self):
        while self.events:
            self.effects += self.core.handle(*self.events.popleft())

    def _rows(self):
        """Return the logits of the step: the target chooses by position."""
        rows = []
        for span in self.step.spans:
            positions = range(span.end - len(span.ids), span.end)
            ids = [position % 7 if position % 13 else 7 for position in positions]
            rows.append(np.eye(8, dtype=np.float32)[ids] if span.logits else None)
        return rows

    def carry_out(self, most=3):
        for _ in range(min(most, len(self.effects))):
            effect = self.effects.popleft()
            match effect:
                case vev.ToClient(client, news):
                    self.serve(self.clients.give(client, news))
                case vev.RequestRefused(client, error):
                    self.serve(self.clients.refuse(client, error))
                case vev.Forgotten(session):
                    self.clients.forget(session)
                case vev.ToDrafter(drafter, said):
                    self.known.append((drafter, said.session))

    def wait(self, seconds=0.1):
        self.now += seconds

    def settle(self, over):
        for _ in range(400):
            if over():
                return
            self.encode()
            self.turn()
            self.carry_out(10**9)
            self.wait(0.01)
        pytest.fail(f"left: {self.left()}")

    def left(self):
        """Return all that is still there."""
        clients = self.clients
        parts = [clients.sessions, clients.requests, clients.waiting]
        parts += [self.core.sessions(), self.core.kept]
        return [part for part in parts if part]

    def check_places(self):
        """Assert that short texts and others have no more sessions than places."""
        assert not any(entry.session for entry in self.clients.waiting)
        guests = self.core.guests
        assert guests <= 2
        assert len(self.core.sessions()) - guests <= 3


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_left(seed, stopped):
    world = World(seed)
    happens = [
        world.ask,
        world.ask,
        world.cancel,
        world.pause,
        world.encode,
        world.drafter,
        world.close,
        world.solved,
        world.turn,
        world.turn,
        world.carry_out,
        world.carry_out,
        world.wait,
    ]
    for _ in range(400):
        world.rng.choice(happens)()
        world.check_places()
    world.read_on()
    if stopped:
        world.stopped_with = Busy("stopping")
        world.serve(world.clients.stop(world.stopped_with))
        world.tell(vev.Signal.STOPPING)
        world.settle(lambda: not (world.clients.requests or world.events or world.effects))
        assert not world.core.sessions()
    world.settle(lambda: not world.left() and not world.events)
