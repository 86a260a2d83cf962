"""Drafts in the verifier's process, between two steps of the target: `LocalDrafting`.

The drafter is a draft model beside the target ("local") or the target's own head ("mtp"). It has
the target's sequence numbers: what it holds in sequence 3 belongs to the session that has sequence
3 of the target.

One turn, with the text a b c d and 2 drafts wanted:

1. The target's step is over. `next_step` returns a DraftStep: the sequence holds a b, so the row
   appends c d, and drafts e f behind them.
2. `finish` takes e f to the session's source (`sources/local.py`), whose chain the target's next
   step verifies. The sequence holds a b c d e: the last draft is not appended.
3. The target chooses e x. The next row finds that the sequence agrees with a b c d e, cuts what
   does not, and appends x.

Nothing is to be undone anywhere: each row compares the ids that the sequence holds with the text
as it is by then. So a session that is set back, a prefix that is reused, and a new session on old
ids need no rule of their own.

A text may be longer than the drafter's context, or be long when it is first drafted for. Then a
window of it is read (see `core/drafter/window.py`).

A drafter that `follows` needs the target's hidden states, which last for some steps. Rows are read
with the next drafts, and those of a prompt before they are lost. While nothing is drafted nothing
is read: then the sequence begins anew with the rows that are left.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specmesh.core import events as ev
from specmesh.core.draft_length.local_estimates import PROBE_DRAFTS, LocalEstimates
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_orders import KVCut
from specmesh.core.prefix import common_length
from specmesh.core.sampling.sampler import Logits, Sampler, SamplingParams
from specmesh.core.verifier.accept import uses_proposals
from specmesh.core.verifier.scheduler import Part
from specmesh.core.verifier.session import SessionState, VerifierSession
from specmesh.core.verifier.session_context import SessionContext
from specmesh.core.verifier.unread_rows import UnreadRows
from specmesh.errors import SpecmeshError

PROBE_SHARE = 0.01  # of the seconds without drafts, for drafts that show whether they pay again
PROBE_IDS = 256  # most ids that are read for such drafts, and fewest for others
READ_SHARE = 0.05  # of the expected seconds of a text, for reading the ids before it
EXPECTED_IDS = 512  # most ids that a text is expected to get yet
QUIET_TURNS = 8  # steps for which the decision stays that no drafts pay: it takes 50 us
USUAL_IDS = 2  # ids that a row appends where the step before had drafts: the last one and a bonus


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLimits:
    """What the drafter can do.

    n_ctx: ids that a sequence holds. n_batch: most ids of a step.
    batches: a step may have rows of several sequences.
    follows: it reads the rows of the target's steps.
    kept_rows: rows before the target's newest step that it can still read then.
    bos: cells of the BOS that a window begins with: 0 or 1.
    endless: a sequence holds any number of ids.
    """

    n_ctx: int
    n_batch: int
    batches: bool = False
    follows: bool = False
    kept_rows: int = 0
    bos: int = 0
    endless: bool = False


@dataclass(slots=True, kw_only=True)
class HeldText:
    """The ids that a sequence of the drafter holds.

    session: whose text they were last compared with.
    start: position in the text of the first of them. bos: cells of the BOS before it.
    ids: in order. agreed: how many of them are committed ids of that session for certain.
    cells: that the engine holds, perhaps more than these.
    """

    session: int = -1
    start: int = 0
    bos: int = 0
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    agreed: int = 0
    cells: int = 0

    @property
    def end(self) -> int:
        """Return the position in the text behind the last id."""
        return self.start + len(self.ids)

    @property
    def length(self) -> int:
        """Return the cells of these ids."""
        return self.bos + len(self.ids) if self.ids else 0

    def keep(self, count: int) -> None:
        """Keep the first `count` ids."""
        del self.ids[count:]
        self.agreed = min(self.agreed, count)

    def begin(self, start: int, bos: int) -> None:
        """Hold no ids, and begin at a position of the text."""
        self.keep(0)
        self.start = start
        self.bos = bos


class LocalDrafting:
    """Decides which sessions are drafted for, with how many drafts, between the target's steps.

    - All sessions that step next are drafted for at once, if the drafter can do so.
    - The number of drafts is the one with the most tokens per second, by measured acceptance, by
      measured seconds of drafts and of the target's steps.
    - A gate for each number of sessions compares steps with drafts and steps without.
    - A session for which another source has drafts in hand gets none here.

    name: of the source. estimates: what was measured.
    drafted: drafts that may pay were made before the target's step that runs, or ran last.
    read_s: seconds in which long texts were read before that step.
    """

    def __init__(
        self,
        limits: LocalLimits,
        estimates: LocalEstimates,
        costs: StepCosts,
        speculations: Speculations,
    ) -> None:
        """Begin with empty sequences.

        costs: of the target's steps. speculations: by source and number of sessions.
        """
        self.name = estimates.name
        self.estimates = estimates
        self.drafted = False
        self.read_s = 0.0
        self._limits = limits
        self._costs = costs
        self._speculations = speculations
        self._held: dict[int, HeldText] = {}
        self._planned = False  # it is decided what is drafted before the target's next step
        self._wanted: dict[int, int] = {}  # by session, drafts that are still to be made
        self._unread = UnreadRows(limits.kept_rows)  # of the target, if the drafter follows it
        self._probe_s = 0.0  # seconds that a probe may take
        self._probes = 0
        self._quiet_turns = 0  # steps until it is seen again whether drafts pay
        self._ran = False  # the drafter had a step before the target's

    # --- before a step of the target

    def next_step(self, sessions: Mapping[int, SessionContext], now: float) -> ev.DraftStep | None:
        """Return the step to run before the target's next one; None if there is none.

        sessions: that may have steps.
        """
        if not self._planned:
            self._planned = True
            self._wanted = self._plan(sessions, now)
        rows = self._next_rows(sessions)
        if not rows:
            return None
        return ev.DraftStep(upstream=0, cuts=self._cuts(rows), rows=tuple(rows))

    def _next_rows(self, sessions: Mapping[int, SessionContext]) -> list[ev.DraftRow]:
        """Return the rows of one step, of the sessions whose drafts are still to be made."""
        rows: list[ev.DraftRow] = []
        room = self._limits.n_batch
        for number, drafts in list(self._wanted.items()):
            context = sessions.get(number)
            if context is None:
                del self._wanted[number]
                continue
            row = self._row(context.session, drafts, room)
            if row is None and rows:
                continue  # perhaps it only has no room in this step
            del self._wanted[number]
            if row is None:
                continue  # it needs nothing
            rows.append(row)
            room -= len(row.ids) + row.bos
            if not self._limits.batches or room <= 0:
                break
        return rows

    def _plan(self, sessions: Mapping[int, SessionContext], now: float) -> dict[int, int]:
        """Return by session the drafts to make; 0 for a text that is only read."""
        stepping: list[VerifierSession] = []
        for context in sessions.values():
            session = context.session
            if session.state is SessionState.GENERATING and session.finished is None:
                stepping.append(session)
        gate = self._speculations.of(self.name, max(len(stepping), 1)).gate
        wanted = self._drafts_of(stepping, now, adapts=gate.open)
        for session in stepping:
            source = session.local
            if source is None:
                continue
            if session.id in wanted and not self._limits.follows:
                source.begin(session.choice.exact_drafts(session.max_drafts()))
            source.drafting = wanted.get(session.id, 0) > 0 and not source.probing
        if self._limits.follows:
            wanted |= self._readings_of(sessions, pays=gate.open and self._quiet_turns <= 0)
        return wanted

    def _drafts_of(
        self, stepping: Sequence[VerifierSession], now: float, *, adapts: bool
    ) -> dict[int, int]:
        """Return by session the drafts to make: those that clients chose, and those that pay.

        adapts: drafts may be made that no client chose.
        """
        wanted: dict[int, int] = {}
        adapting: list[VerifierSession] = []
        for session in stepping:
            if not self._may_draft(session):
                continue
            if _begins(session):
                continue  # the first id comes without drafts, as soon as it can
            fixed = session.params.allowed_draft_n
            if fixed is not None:
                wanted[session.id] = fixed
            elif adapts:
                adapting.append(session)
        if adapting:
            wanted |= self._adapted(adapting, stepping, now)
        return wanted

    def _readings_of(self, sessions: Mapping[int, SessionContext], *, pays: bool) -> dict[int, int]:
        """Return 0 drafts for each session of which the head reads rows of the prompt now.

        pays: drafts were last seen to pay.
        """
        self._unread.forget_others(sessions)
        wanted: dict[int, int] = {}
        for context in sessions.values():
            session = context.session
            if not self._reads_along(session, pays=pays):
                continue
            # Of a long prompt only the end is worth its time.
            self._unread.read(session, len(session.prefix) - self._most_read(session))
            if self._unread.of(session):
                wanted[session.id] = 0
        return wanted

    def _reads_along(self, session: VerifierSession, *, pays: bool) -> bool:
        """Return True if rows of a prompt are to be read now, as they are lost otherwise.

        pays: drafts were last seen to pay.
        """
        if session.local is None or session.local.failed:
            return False
        if session.state is SessionState.GENERATING and not _begins(session):
            return False
        if not pays and not session.params.allowed_draft_n:
            return False
        return self._unread.is_full(session)

    def _may_draft(self, session: VerifierSession) -> bool:
        """Return True if a session takes drafts, and no other source has some in hand.

        Before its last id a text takes none: that must not look as if drafts did not pay.
        """
        source = session.local
        if source is None or source.failed:
            return False
        if not session.may_draft or not session.max_drafts():
            return False
        return not session.choice.has_others(source)

    def _adapted(
        self,
        adapting: Sequence[VerifierSession],
        stepping: Sequence[VerifierSession],
        now: float,
    ) -> dict[int, int]:
        """Return by session the drafts that pay, or those of a probe."""
        self._quiet_turns -= 1
        if self._quiet_turns > 0:
            return {}
        sessions = len(stepping)
        context_length = sum(len(session.prefix) for session in stepping)
        most = max(session.max_drafts() for session in adapting)
        pause = self._costs.pause
        others = sessions - len(adapting)

        def seconds(rows: int) -> float:
            known = self._costs.seconds(rows + others, context_length)
            return known + pause if known else 0.0

        acceptance: list[Sequence[float]] = []
        for session in adapting:
            assert session.local is not None, "only such sessions may draft"
            session.local.probing = False
            session.local.beside = False
            acceptance.append(session.local.acceptance(most))
        drafts = PROBE_DRAFTS
        if self.estimates.costs.known and seconds(len(adapting)):
            drafts = self.estimates.best_drafts(acceptance, most, seconds)
            if sessions == 1:
                drafts = self._beside(adapting[0], now) or drafts
        if drafts:
            return {session.id: drafts for session in adapting}
        self._quiet_turns = QUIET_TURNS
        return self._probed(adapting[self._probes % len(adapting)])

    def _beside(self, session: VerifierSession, now: float) -> int:
        """Return the drafts of a lone session that pay while those of a drafter are on their way.

        They are taken without a wait for the drafter. 0 if none pay, or if none are on their way.
        """
        source = session.local
        assert source is not None, "only such sessions may draft"
        context_length = len(session.prefix)

        def seconds(drafts: int) -> float:
            step = self._costs.seconds(drafts + 1, context_length) + self._costs.pause
            return self.estimates.costs.seconds(1, drafts) + step

        acceptance = source.acceptance(session.max_drafts())
        drafts = session.draft_length.best_beside(acceptance, seconds, now)
        source.beside = drafts > 0
        return drafts

    def _probed(self, session: VerifierSession) -> dict[int, int]:
        """Return a session's drafts for a probe, if the time without drafts allows one.

        They are made, but not verified: that costs least, and shows whether to draft again.
        """
        costs = self.estimates.costs
        missing = min(self._missing(session), PROBE_IDS)
        cost = costs.seconds(1, PROBE_DRAFTS) + missing * costs.id_seconds
        if self._probe_s < cost:
            return {}
        self._probe_s = 0.0
        self._probes += 1
        assert session.local is not None, "only such sessions may draft"
        session.local.probing = True
        return {session.id: PROBE_DRAFTS}

    def _missing(self, session: VerifierSession) -> int:
        """Return the ids of a session's text that are to be read before drafts."""
        if self._limits.follows:
            return len(self._unread.of(session))
        return max(len(session.prefix) - self._held_of(session).end, 0)

    # --- rows

    def _row(self, session: VerifierSession, wanted: int, room: int) -> ev.DraftRow | None:
        """Return a session's row of at most `room` ids; None if it needs none, or has no room.

        If many ids are to be read, a row has a portion of them. Only the row with the last portion
        has drafts.
        """
        source = session.local
        assert source is not None, "only sessions with this source are drafted for"
        if self._limits.follows and wanted:
            # Its drafts begin where the text ends. What is left of the chain is older.
            source.tokens.clear()
        held = self._held_of(session)
        end = len(session.prefix.ids) + len(source.tokens)
        drafts = min(wanted, session.max_drafts()) - len(source.tokens)
        if self._limits.follows:
            rows = self._unread.of(session)
            if not rows:
                return None
            end = _place_following(held, rows)
        elif drafts > 0:
            self._place(session, held, end, drafts)
        else:
            return None
        bos = 0 if held.ids else held.bos
        # The last id is always appended, since its logits show the next one.
        held.keep(min(len(held.ids), end - 1 - held.start))
        begin = held.end
        ids = self._text(session, begin, end)
        portion = ids[: self._limits.n_batch - bos]
        if not portion or len(portion) + bos > room:
            return None
        if not self._limits.endless:
            # The last draft is not appended.
            drafts = min(drafts, self._limits.n_ctx - held.bos - (end - held.start) + 1)
        if self._limits.follows:
            self._unread.read(session, begin + len(portion) - 1)
        is_last = len(portion) == len(ids)
        generates = session.state is SessionState.GENERATING
        sampler = None
        if is_last and drafts > 0 and generates:
            sampler = self._sampler_of(session)
        return ev.DraftRow(
            key=ev.SessionKey(0, session.id),
            seq=session.slot.seq,
            position=held.length,
            text_position=begin,
            ids=tuple(portion),
            sampler=sampler,
            draft_n=drafts if sampler is not None else 1,
            bos=bos,
        )

    def _text(self, session: VerifierSession, begin: int, end: int) -> list[int]:
        """Return the ids of a session's text and chain between two positions."""
        ids = session.prefix[begin:end]
        if session.local is not None and end > len(session.prefix.ids):
            length = len(session.prefix.ids)
            ids += session.local.tokens[max(begin - length, 0) : end - length]
        return ids

    def _held_of(self, session: VerifierSession) -> HeldText:
        """Return what a session's sequence holds, as far as it agrees with its text and chain."""
        seq = session.slot.seq
        held = self._held.get(seq)
        if held is None:
            held = self._held[seq] = HeldText()
        if held.session != session.id:
            held.session = session.id
            held.agreed = 0
        # Only ids that were not compared with this text before.
        compared = held.agreed
        text = session.prefix[held.start + compared : held.end]
        if session.local is not None and not self._limits.follows:
            text += session.local.tokens
        agreed = compared + common_length(held.ids[compared:], text)
        held.keep(agreed)
        held.agreed = max(min(agreed, len(session.prefix) - held.start), 0)
        if not agreed:
            held.begin(0, 0)
        return held

    def _place(self, session: VerifierSession, held: HeldText, end: int, drafts: int) -> None:
        """Have a sequence begin where a text of `end` ids can be read, with drafts behind it."""
        limits = self._limits
        most = self._most_read(session)
        if end - held.end > most:
            held.begin(end - most, limits.bos)
        if limits.endless:
            return
        if held.bos + end - held.start + drafts <= limits.n_ctx:
            return
        # Half a window back: the other half is for the text that follows.
        held.begin(max(end - limits.n_ctx // 2, 0), limits.bos)

    def _most_read(self, session: VerifierSession) -> int:
        """Return the most ids of a session's text that it pays to read before drafts."""
        source = session.local
        costs = self.estimates.costs
        if session.params.allowed_draft_n is not None:
            return len(session.prefix)
        if source is None or source.probing or not costs.id_seconds:
            return PROBE_IDS
        length = len(session.prefix)
        expected = min(session.end - length, EXPECTED_IDS)
        seconds = READ_SHARE * expected * self._costs.seconds(1, length)
        return max(int(seconds / costs.id_seconds), PROBE_IDS)

    def _sampler_of(self, session: VerifierSession) -> Sampler:
        """Return the sampler of a session's drafts.

        It is the session's own: drafts have the same noise. The likeliest id is proposed where the
        target weighs drafts by their distribution.
        """
        if uses_proposals(session.params.sampling):
            return _LIKELIEST
        sampler = session.sampler
        if not sampler.looks_back:
            return sampler
        assert session.local is not None, "only such sessions have rows"
        return _FollowingSampler(sampler, [*session.prefix.ids, *session.local.tokens])

    def _cuts(self, rows: Sequence[ev.DraftRow]) -> tuple[KVCut, ...]:
        """Return the cuts of the sequences that hold more than their rows begin with."""
        cuts: list[KVCut] = []
        for row in rows:
            if self._held[row.seq].cells > row.position:
                cuts.append(KVCut(row.seq, row.position))
        return tuple(cuts)

    # --- after a step of the drafter

    def finish(
        self,
        step: ev.DraftStep,
        result: ev.DraftedRows | SpecmeshError,
        sessions: Mapping[int, SessionContext],
        seconds: float,
    ) -> list[ev.Noted]:
        """Take the drafts of a step, or the error that it failed with."""
        if isinstance(result, SpecmeshError):
            return self._fail(step, result, sessions)
        self._ran = True
        for row, tokens in zip(step.rows, result.tokens, strict=True):
            held = self._held[row.seq]
            kept = result.held.get(row.seq, row.position)
            if kept < row.position:  # it could not go back so far
                held.cells = kept
                held.keep(max(kept - held.bos, 0))
                continue
            self._appended(held, row, tokens)
            context = sessions.get(row.key.number)
            if context is not None and tokens:
                self._take_drafts(context.session, row, tokens)
        self._learn(step, seconds)
        return []

    def _appended(self, held: HeldText, row: ev.DraftRow, tokens: Sequence[int]) -> None:
        """Note that a sequence holds the ids of a row and the drafts after them."""
        if not row.position:
            held.bos = row.bos
        held.ids.extend(row.ids)
        begin = len(held.ids)
        held.ids.extend(tokens)
        if row.sampler is not None and len(tokens) == row.draft_n:
            held.ids.pop()  # the last draft is not appended
        held.cells = held.length
        if self._limits.follows:
            # Drafts are read again later, with the hidden states of the target's rows.
            held.keep(begin)

    def _take_drafts(
        self, session: VerifierSession, row: ev.DraftRow, tokens: Sequence[int]
    ) -> None:
        """Give a session's source the drafts of a row."""
        source = session.local
        if source is None:
            return
        adapts = session.params.allowed_draft_n is None
        self.drafted = self.drafted or (adapts and not source.probing)
        source.take(row.text_position + len(row.ids), tokens)

    def _learn(self, step: ev.DraftStep, seconds: float) -> None:
        """Learn the seconds of drafts, or of the ids that were read."""
        costs = self.estimates.costs
        ids = 0
        drafts = 0
        drafting = 0  # rows with drafts
        for row in step.rows:
            ids += len(row.ids)
            if row.sampler is not None:
                drafting += 1
                drafts = max(drafts, row.draft_n)
        read = ids - USUAL_IDS * drafting
        if drafting and read <= USUAL_IDS * drafting:
            costs.record(drafting, drafts, seconds)
            return
        read_s = max(seconds - costs.seconds(drafting, drafts), 0.0)
        if self._limits.follows:
            return
        self.read_s += read_s
        costs.record_reading(read, read_s)

    def _fail(
        self,
        step: ev.DraftStep,
        error: SpecmeshError,
        sessions: Mapping[int, SessionContext],
    ) -> list[ev.Noted]:
        """Draft no more for the sessions of a step that failed, and keep nothing of it."""
        noted: list[ev.Noted] = []
        for row in step.rows:
            held = self._held[row.seq]
            # Perhaps its cuts were not carried out: whatever it holds, it is emptied.
            held.begin(0, 0)
            held.cells = max(held.cells, 1)
            number = row.key.number
            context = sessions.get(number)
            if context is not None and context.session.local is not None:
                context.session.local.failed = True
            fields: dict[str, object] = {"session": number, "error": str(error)}
            noted.append(ev.Noted("drafting_failed", fields, "error"))
        return noted

    # --- a step of the target

    def begun(self) -> bool:
        """Note that the target's step begins; return True if there were drafts before it."""
        self._planned = False
        return self._ran

    def stepped(
        self,
        parts: Sequence[tuple[int, Part]],
        contexts: Mapping[int, SessionContext],
        spent: float | None,
    ) -> None:
        """Note that a step of the target is over.

        parts: of the step. contexts: its sessions.
        spent: seconds from the end of the step before; None if it was no step like others.
        """
        if self._limits.follows:
            for number, part in parts:
                rows = part.rows if isinstance(part, ev.Prefill) else 1 + len(part.drafts)
                self._unread.note(contexts[number].session, part.position, part.position + rows)
        asked = any(context.session.local is not None for context in contexts.values())
        if spent is not None and asked and not self.drafted:
            self._probe_s += PROBE_SHARE * spent
        self.drafted = False
        self.read_s = 0.0
        self._ran = False


_LIKELIEST = Sampler(SamplingParams())


def _place_following(held: HeldText, rows: range) -> int:
    """Have a sequence go on with rows of the target; return the end of the ids that it reads.

    The row of an id shows the next one, so it is read together with that.
    """
    begin = rows.start + 1
    if held.ids and held.start <= begin <= held.end:
        held.keep(begin - held.start)
    else:
        held.begin(begin, 0)
    return rows.stop + 1


def _begins(session: VerifierSession) -> bool:
    """Return True if a session's text has no id yet behind its prompt, or the resumed one."""
    return len(session.prefix.ids) == session.n_prompt + session.resumed


class _FollowingSampler(Sampler):
    """A sampler that looks back at the drafts that it has chosen itself, one after the other."""

    __slots__ = ("_ids", "_plain")

    def __init__(self, plain: Sampler, ids: Sequence[int]) -> None:
        super().__init__(plain.params)
        self._plain = plain
        self._ids = list(ids)
        self.argmax = False

    def choose(self, logits: Logits, position: int) -> int:
        """Choose as the target will if all drafts before are accepted."""
        token = self._plain.after(self._ids).choose(logits, position)
        self._ids.append(token)
        return token
