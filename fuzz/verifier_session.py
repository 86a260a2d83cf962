"""A verifier's session under a script of frames, steps and time.

It never raises and stays bounded, and its text is the target's.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache

from fuzz.frames import Tape, decoded, frame_of
from fuzz.oracle import END, MAX_TOKENS, MOST_HELD, N_VOCAB, PIECES, PROMPT, Memory, alone
from specmesh.core import events as ev
from specmesh.core.draft_length.drafter_estimates import DrafterEstimates
from specmesh.core.draft_length.policy import Policy, PolicyInputs, solve
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.rounds import Round
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier.session import VerifierSession
from specmesh.wire import messages as m

SESSION = 7
BEGUN = 3
"""Numbers up to this one begin a session with its prompt, others one with more ids."""

SAMPLING = (
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.7, top_k=5, top_p=0.9, seed=2**63),
)
ROUND_TRIPS = (0.0, 0.0003, 0.02, 0.5)


def run(data: bytes) -> Counter[str]:
    """Play the input as a script, then finish the text without a drafter. Count the events."""
    world = _World(Tape(data))
    while world.tape.left and world.reason is None:
        world.turn()
    world.end()
    return world.seen


class _World:
    """A session, the memory of its model, and the ids of its client."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.now = 0.0
        self.seen = Counter[str]()
        sampling = SAMPLING[tape.byte() % len(SAMPLING)]
        number = tape.byte()
        draft_n = tape.choice((None, None, 0, 1, 4, 30))
        stop = tape.choice(((), (), ("de",), ("b", "gh")))
        self.params = params = SessionParams(
            sampling, 1 + number % MAX_TOKENS, draft_n=draft_n, stop=stop
        )
        self.n_ctx = n_ctx = tape.choice((64, 64, len(PROMPT) + 1, 20))
        self.most = tape.choice((8, 16, 1, 0))
        limits = TargetLimits(n_ctx, N_VOCAB, frozenset({END}), max_drafts=self.most, pieces=PIECES)
        self.costs = StepCosts()
        truth, self.shall, self.ends = alone(params, n_ctx)
        self.truth = Prefix(truth)
        begun = max(number // MAX_TOKENS - BEGUN, 0)
        ids = truth[: len(PROMPT) + begun]  # a text that is gone on with, or a prompt
        self.session = VerifierSession(
            id=SESSION,
            ids=ids,
            params=params,
            limits=limits,
            costs=self.costs,
            speculations=Speculations(),
            now=self.now,
            n_prompt=len(PROMPT),
        )
        self.memory = Memory(n_ctx)
        self.shown = list(self.session.text_ids())
        self.reason = self.session.finished
        self.seen["resumed"] += self.session.resumed > 0
        self.step: tuple[ev.Verify, float] | None = None
        self.until: float | None = None
        self.solved = False
        if tape.byte() & 1:
            self.attach()

    # --- the script

    def turn(self) -> None:
        self.now += (self.tape.byte() ** 2) * 1e-5
        match self.tape.byte() % 16:
            case 0 | 1 | 2 | 3 | 4:
                self.work()
            case 5 | 6 | 7 | 8 | 9 | 10:
                self.hear(frame_of(self.tape, self.truth, SESSION, len(self.session.prefix)))
            case 11:
                self.hear(self.tape.take(self.tape.byte()))
            case 12:
                self.attach()
            case 13:
                self.session.draft_length.detach()
            case 14:
                self.decide()
            case _:
                if self.tape.byte() == 0:
                    self.perform(self.session.cancel(m.FinishReason.CANCELLED))

    def attach(self) -> None:
        drafter = DrafterEstimates()
        drafter.arrivals.record_round_trip(self.tape.choice(ROUND_TRIPS))
        self.perform(self.session.attach(drafter))

    def hear(self, frame: bytes) -> None:
        """Take a frame from the drafter, as the verifier's loop does."""
        message = decoded(frame, self.seen)
        if isinstance(message, m.Draft | m.DraftProbs | m.Nack):
            self.heard(message)
        elif message is not None:
            self.seen["no event"] += 1

    def decide(self) -> None:
        """Set another policy: one of a few, or once the solution of the session's estimates."""
        draft_length = self.session.draft_length
        inputs = None
        if self.session.finished is None and not self.solved:
            inputs = draft_length.unsolved(self.now)
        if inputs is None:
            draft_length.policy = _policy(self.tape.byte() % 3, self.most)
            return
        self.solved = True
        draft_length.policy = solve(inputs, draft_length.policy)
        self.seen["solved"] += 1

    def work(self) -> None:
        """Begin or end a step, take in a part of the prompt, or wait."""
        if self.step is not None:
            part, began = self.step
            self.step = None
            logits = self.memory.rows((part.last, *part.drafts))
            self.costs.record(len(logits), self.now - began)
            sessions = 1 + self.tape.byte() % 4
            self.take(
                self.session.stepped(
                    part, logits, self.now, seconds=self.now - began, sessions=sessions
                )
            )
            return
        plan = self.session.plan(self.now)
        match plan:
            case ev.Prefill(position, ids):
                assert position == len(self.memory.held), "the plan is not where the memory ends"
                taken = ids[: 1 + self.tape.byte() % len(ids)]
                self.memory.append(taken)
                self.session.prefilled(len(taken))
            case ev.Wait(until):
                assert until > self.now, "asked to sleep into the past"
                assert self.until in (None, until), "the deadline moves"
                self.until = until
                self.seen["waits"] += 1
                if self.tape.byte() & 1:
                    self.now = until
            case ev.Verify():
                assert plan.position == len(self.memory.held), (
                    "the plan is not where the memory ends"
                )
                assert len(plan.drafts) <= self.most, "more drafts than the target takes"
                assert self.session.begin(self.now) >= 0
                self.step = (plan, self.now)
                self.until = None

    # --- what must hold

    def heard(self, said: m.Draft | m.DraftProbs | m.Nack) -> None:
        before = len(self.session.prefix)
        effects = self.session.take(said, self.now)
        assert len(self.session.prefix) == before, "a peer has moved the text"
        self.take(effects)

    def take(self, effects: Sequence[ev.VerifierEffect]) -> None:
        self.perform(effects)
        committed = self.session.prefix
        assert committed[0 : len(committed)] == self.truth[0 : len(committed)], (
            "not what the target says"
        )
        assert len(self.session.remote.tokens) <= MOST_HELD
        assert 0 <= self.session.draft_n <= max(self.most, 30)

    def perform(self, effects: Sequence[ev.VerifierEffect]) -> None:
        assert len(effects) <= 4
        for effect in effects:
            self.seen[type(effect).__name__] += 1
            match effect:
                case m.Truth(_, base, crc, ids) | m.Sync(_, base, crc, ids):
                    assert crc == self.truth.crc_at(base)
                    assert list(ids) == self.truth[base : len(self.session.prefix)]
                case m.Nack(_, base, crc):
                    assert (base, crc) == (len(self.session.prefix), self.session.prefix.crc)
                case ev.Rollback(length):
                    self.memory.trim(length)
                case Round():
                    assert self.reason is None, "a round after the end"
                    self.seen["accepted"] += effect.accepted
                    self.seen["rejected"] += int(effect.accepted < len(effect.drafts))
                    self.shown.extend(effect.text.ids)
                case ev.Finish(reason):
                    assert self.reason is None, "ended twice"
                    self.reason = reason

    def end(self) -> None:
        """Finish the text without a drafter: all of it is the target's."""
        self.seen["stale"] += self.session.counts.stale_drafts
        self.session.draft_length.detach()
        self.tape = Tape(b"")
        for _ in range(len(PROMPT) + 3 * MAX_TOKENS):
            if self.reason is not None:
                break
            if self.until is not None:
                self.now = self.until
            self.work()
        shown = tuple(self.shown)
        assert self.shall[: len(shown)] == shown
        assert self.reason in (self.ends, "cancelled"), f"ended with {self.reason}"
        if self.reason != "cancelled":
            assert shown == self.shall


@cache
def _policy(number: int, most: int) -> Policy:
    """Return a policy that drafts far, one that waits for few, or one that does not draft."""
    rate, interval, row = ((0.95, 0.002, 0.01), (0.8, 0.02, 0.3), (0.05, 0.05, 1.0))[number]
    steps = tuple(0.03 * (1 + row * drafts) for drafts in range(most + 1))
    return solve(
        PolicyInputs(
            steps=steps,
            rates=(rate,) * (most + 1),
            interval=interval,
            restart=0.01,
            undrafted_s=0.03,
        )
    )
