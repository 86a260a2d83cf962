"""A verifier and a drafter in virtual time.

Frames, requests and engine results go in with `now`, effects come out. Only here the property world
meets the session machines: a change of the machines ends at `Verifier` and `Drafter`.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace

from fuzz.oracle import END, MOST_HELD, N_VOCAB
from specmesh.core import events as ev
from specmesh.core.draft_length.policy import solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.drafter.core import DrafterCore
from specmesh.core.drafter.session import DraftLimits
from specmesh.core.drafter.window import Windows
from specmesh.core.events import Step
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.kv_orders import KVCut
from specmesh.core.kv_slots import KVSlots
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.requests import Request
from specmesh.core.sampling.proposal import ProposalSampler
from specmesh.core.session_params import TargetLimits
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.earlier_outputs import EarlierOutputs
from specmesh.core.verifier.predicted_text import PredictedText
from specmesh.core.verifier.remote_drafter import RemoteDrafter
from specmesh.core.verifier.session import VerifierSession
from specmesh.core.verifier.target import Target
from specmesh.wire import messages as m

BOS = -1  # of a draft model, in its memory here
SYNC_CHUNK = 5  # ids that one SYNC carries here, so that there are many
MAX_DRAFTS = 8
MAX_COPIED = 24  # drafts of known text that a lone session may have in a step
N_SEQ = 64  # most sessions
OUTPUTS = 2**20  # bytes of earlier outputs
ACCOUNT = ("key", b"")  # of all requests, so that each is drafted from those before it
PREFILL_ROWS = 8  # of a prompt, in a step in which others verify

# --- effects, and what the engines are to do


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame: to this peer, or to the verifier if a drafter sends."""

    message: m.Message
    peer: Hashable = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A step of the draft model: take in `ids`, and perhaps draft.

    text: the ids that a draft follows, until the next step.
    window: of a text, without its beginning.
    """

    ids: tuple[int, ...]
    wants_draft: bool
    began: float
    text: Prefix
    window: bool


@dataclass(slots=True)
class _Session:
    """One generation at the verifier, and whether it waits."""

    machine: VerifierSession
    wait_until: float | None = None
    given_up: bool = False


class Verifier:
    """A verifier's core.

    The test decides which drafter has a session. seen: counts of events. first: number of the first
    session.
    """

    def __init__(self, n_ctx, n_batch, seen, first=1):
        limits = TargetLimits(
            n_ctx, N_VOCAB, frozenset({END}), max_drafts=MAX_DRAFTS, max_copied=MAX_COPIED
        )
        target = Target(
            limits=limits,
            costs=StepCosts(),
            slots=KVSlots(N_SEQ, "whole", 0),
            n_batch=n_batch,
            max_sessions=N_SEQ,
            prefill_rows=PREFILL_ROWS,
            earlier=EarlierOutputs(OUTPUTS),
        )
        self._core = VerifierCore(target, first=first)
        self._lifecycle = self._core._lifecycle
        self._sessions = {}
        self._peers = {}
        self._held = Counter()  # ids in each sequence of the target's memory
        self._step = Step((), ())
        self._parts = {}  # of the step, by session
        self._seen = seen

    def open(self, prompt, params, now, said=(), predicted=()):
        """Open a session for a prompt, or for one with the beginning of its text.

        predicted: the client's prediction of the text.
        """
        request = Request(None, prompt, params)
        ids = (*prompt, *said)
        opening = vev.Opening(
            client=len(self._sessions),
            request=request,
            ids=ids,
            n_prompt=len(prompt),
            predicted=PredictedText(predicted),
            account=ACCOUNT,
        )
        self._core.handle(opening, now)
        newest = self._core.sessions()[-1]
        self._sessions[newest.id] = _Session(newest)
        return newest.id

    # --- drafters

    def attach(
        self,
        number,
        peer,
        now,
        round_trip,
        *,
        rated,
    ):
        """Give a session without a drafter one.

        rated: the verifier knows how often its drafts are accepted.
        """
        live = self._lifecycle.running[number]
        assert live.drafter is None
        identity = self._joined(peer, round_trip, rated=rated)
        self._lifecycle.drafters.attach(live, identity, now)
        return self._handle(vev.Signal.TIME_UP, now)

    def detach(self, number, now):
        live = self._lifecycle.running.get(number)
        if live is None or live.drafter is None:
            return []
        effects = self._handle(vev.DrafterLeft(live.drafter, may_return=False), now)
        assert not self._sessions[number].machine.draft_length.drafter
        return effects

    def move(self, number, peer, now):
        """Another drafter, which perhaps was there before, for a session that may have one."""
        pool = self._lifecycle.drafters
        live = self._lifecycle.running[number]
        if live.drafter is not None:
            pool.release(live, live.drafter)
        identity = self._identity(peer) or self._joined(peer, None, rated=False)
        pool.attach(live, identity, now)
        return self._handle(vev.Signal.TIME_UP, now)

    def _identity(self, peer):
        """Return the identity of a peer, b"" of a stranger."""
        for identity, known in self._peers.items():
            if known is peer:
                return identity
        return b""

    def _joined(self, peer, round_trip, *, rated):
        identity = b"%d" % len(self._peers)
        self._peers[identity] = peer
        drafter = RemoteDrafter(vev.DrafterJoined(identity, 0))
        if round_trip is not None:
            drafter.estimates.arrivals.record_round_trip(round_trip)
        if rated:
            drafter.estimates.acceptance.record(4, 3)
        self._lifecycle.drafters._drafters[identity] = drafter
        return identity

    def receive(self, peer, message, now):
        if not isinstance(message, m.Draft | m.DraftProbs | m.Nack):
            return []
        session = self._sessions.get(message.session)
        live = self._lifecycle.running.get(message.session)
        identity = self._identity(peer)
        effects = self._handle(vev.FromDrafter(identity, message), now)
        assert session is None or len(session.machine.remote.tokens) <= MOST_HELD
        if session is not None and live is not None and live.drafter == identity:
            session.given_up = False
        return effects

    # --- steps

    def next_step(self, now):
        """Return the draft model's next step, if there is one, and the messages before it."""
        step = self._core.next_step(now)
        if isinstance(step, ev.Wait):
            self._note_waits(now)
            assert step.until > now, "asked to sleep into the past"
            return step
        for order in step.orders:
            assert isinstance(order, KVCut), "nothing is shared"
            assert order.length <= self._held[order.seq], "a cut cannot add ids"
            self._held[order.seq] = order.length
        numbers = {session.slot.seq: session.id for session in self._core.sessions()}
        spans = []
        for span in step.spans:
            assert span.ids, "an empty prefill"
            assert span.position == self._held[span.seq], "the plan is not where the memory ends"
            self._held[span.seq] = span.end
            number = numbers[span.seq]
            spans.append(span._replace(seq=number))
            session = self._sessions[number]
            if span.logits:
                session.given_up = session.wait_until is not None and now >= session.wait_until
                session.wait_until = None
        self._step = step
        self._parts = dict(self._core._steps.batch.parts)
        return Step((), tuple(spans))

    def finish(self, rows, seconds, now):
        """Take the engine's result: for each span rows of logits for its ids, or None."""
        effects = self._core.finish(self._step, rows, now - seconds, now)
        return self._effects(effects, now)

    def _note_waits(self, now):
        """A session waits once per step, until a deadline that does not move.

        Never after one was missed.
        """
        for session in self._sessions.values():
            if session.machine.finished is None:
                plan = session.machine.plan(now)
                assert isinstance(plan, ev.Wait)
                assert not session.given_up, "waits again for a drafter that has said nothing since"
                assert session.wait_until in (None, plan.until), "the deadline moves"
                session.wait_until = plan.until
                self._seen["waits"] += 1

    def _effects(self, effects, now):
        result = []
        for effect in effects:
            match effect:
                case vev.ToDrafter(drafter, m.Sync() as sync):
                    self._seen["syncs"] += 1
                    result += self._synced(sync, self._peers[drafter])
                case vev.ToDrafter(drafter, m.Truth() | m.Nack() as sent):
                    self._seen["verifier nacks"] += isinstance(sent, m.Nack)
                    result.append(Send(sent, self._peers[drafter]))
                case vev.ToClient():
                    result.append(effect)
                case vev.Solve(number, drafter, inputs, old):
                    policy = solve(inputs, old)
                    result += self._handle(vev.Solved(number, drafter, policy), now)
        return result

    def _handle(self, event, now):
        return self._effects(self._core.handle(event, now), now)

    def _synced(self, sync, peer):
        """A SYNC in the small frames of a text that is longer than one holds: each may be lost."""
        prefix = Prefix(self._sessions[sync.session].machine.prefix[0 : sync.base])
        assert prefix.crc == sync.prefix_crc
        for start in range(0, max(len(sync.ids), 1), SYNC_CHUNK):
            ids = sync.ids[start : start + SYNC_CHUNK]
            part = replace(sync, base=len(prefix), prefix_crc=prefix.crc, ids=ids)
            yield Send(part, peer)
            prefix.extend(ids)

    # --- what a referee looks at

    def prefix(self, number):
        machine = self._sessions[number].machine
        return machine.prefix[0:]

    def in_hand(self, number, drafts):
        """Return the drafts in hand that begin with those of a step, with their distributions."""
        part = self._parts[number]
        sources = part.sources if isinstance(part, ev.Verify) else ()
        return self._sessions[number].machine.remote.offers(drafts, sources)

    def room(self, number):
        machine = self._sessions[number].machine
        return machine.end - len(machine.prefix)


class Drafter:
    """One session at a drafter.

    n_ctx, n_batch: of its draft model. can_trim: False if a cut makes the model begin anew.
    round_trip: to the verifier, in seconds.
    windows: of texts, if it reads them.
    n_prompt: ids of the session's prompt.
    began: the positions in the text at which a sequence of the model was begun.
    """

    def __init__(
        self,
        session,
        n_ctx,
        n_batch,
        round_trip,
        params,
        *,
        can_trim,
        windows=None,
        n_prompt=0,
    ):
        self._can_trim = can_trim
        self._key = ev.SessionKey(0, session)
        opened = ev.OpenSession(
            key=self._key, session=session, n_vocab=N_VOCAB, n_prompt=n_prompt, params=params
        )
        spares = windows.spares if windows is not None else 0
        slots = KVSlots(1, "cut", 0, guests=spares, n_ctx=n_ctx)
        self._n_ctx = n_ctx
        if windows is not None and windows.endless:
            self._n_ctx = ANY_LENGTH
        self.began: list[int] = []
        self._core = DrafterCore(DraftLimits(windows or Windows(n_ctx=n_ctx), n_batch), slots)
        self._core.handle(ev.UpstreamChanged(0, round_trip, speaks=True), 0.0)
        self._core.handle(opened, 0.0)
        self._session = self._core.sessions()[self._key]
        # Ids in each sequence of the draft model.
        self._memories = [[] for _ in range(1 + spares)]
        self._text = Prefix()
        self._step = None
        self._cut = {}  # what its cuts have left

    def windows(self):
        """Return the counts of the windows that it has read."""
        return self._core.windows()

    def receive(self, message, now):
        if not isinstance(message, m.Truth | m.Sync | m.Nack):
            return []
        return self._effects(self._core.handle(ev.FrameReceived(self._key, message), now))

    def next_step(self, now):
        """Return the draft model's next step, if there is one, and the messages before it."""
        effects = []
        while isinstance(step := self._core.next_step(now), ev.DraftStep):
            held = {}
            for cut in step.cuts:
                memory = self._memories[cut.seq]
                assert cut.length <= len(memory), "a cut cannot add ids"
                if cut.length < len(memory):
                    del memory[cut.length if self._can_trim else 0 :]
                held[cut.seq] = len(memory)
            if step.rows and step.rows[0].position == len(self._memories[step.rows[0].seq]):
                [row] = step.rows
                self._step = step
                self._cut = held
                text = self._append(row)
                window = row.text_position != row.position + row.bos
                wants_draft = row.sampler is not None
                draft = Draft(
                    ids=row.ids, wants_draft=wants_draft, began=now, text=text, window=window
                )
                return draft, effects
            nothing = ev.DraftedRows(held, ((),) * len(step.rows))
            finished = self._core.finish(step, nothing, now, now)
            effects += self._effects(finished)
        assert step.until > now
        return None, effects

    def _append(self, row):
        """Append a row's ids; return the text up to them.

        The sequence then holds consecutive ids of the text, from its beginning or behind a BOS.
        """
        memory = self._memories[row.seq]
        assert row.bos in (0, 1)
        assert not (row.bos and memory), "a BOS in the middle"
        if not memory:
            self.began.append(row.text_position)
        memory += (BOS,) * row.bos
        memory += row.ids
        assert len(memory) <= self._n_ctx, "the model's memory is full"
        end = row.text_position + len(row.ids)
        window = memory[1:] if memory[0] == BOS else memory
        start = end - len(window)
        assert (start > 0) == (memory[0] == BOS), "only a window begins with a BOS"
        known = self._session.chain.known[:end]
        assert window == known[start:], "not what the text has there"
        return self._text_of(known)

    def _text_of(self, ids):
        """Return a text by its ids; the CRCs of those of the text before it are known."""
        text = self._text
        if text.ids.tolist() != ids[: len(text)]:
            text.truncate(common_length(text.ids, ids))
        text.extend(ids[len(text) :])
        return text

    def finish(self, step, token, proposal, now):
        """Take the engine's result: its draft, if there is one, and its distribution."""
        assert self._step is not None, "results come of steps"
        [row] = self._step.rows
        if isinstance(row.sampler, ProposalSampler):
            row.sampler.proposal = proposal
        tokens = () if token is None else (token,)
        result = ev.DraftedRows(self._cut, (tokens,))
        effects = self._core.finish(self._step, result, step.began, now)
        return self._effects(effects)

    def _effects(self, effects):
        result = []
        for effect in effects:
            match effect:
                case (_, m.Draft() | m.DraftProbs() | m.Nack() as sent):
                    assert isinstance(sent, m.Nack) or sent.ids
                    result.append(Send(sent))
                case (_, ev.Learned(ids, accepted) as learned):
                    assert 0 <= accepted <= len(ids)
                    result.append(learned)
        return result
