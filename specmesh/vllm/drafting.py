"""The core, driven by the steps of a vLLM server.

vLLM calls `propose` after each of its steps. That call is the end of the core's step and the
beginning of the next one:

1. Rows are matched to texts. The ids that a text got are the rows of its span: `finish`.
2. A text that no row shows any more has ended, or was set back: its session ends. A row without a
   text begins one. So a text that was set back is opened again when it comes back.
3. `next_step` forms a step. Its drafts are the answer, by row.

Between two calls the step runs, as it does at a verifier daemon. Frames of drafters go to their
sessions at once, on the thread that receives them. A lock keeps the two threads apart. The core
waits for drafts of one lone text only, and no longer than the patience of the settings.

When the last texts end there is no call that shows it. So all texts are closed after _QUIET seconds
without a call.

An unexpected error drops what is known of the rows: all texts end, and the next call opens them
again (faults.py).
"""

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf

import structlog

from specmesh.core import events as ev
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.followed import ChosenIds, followed
from specmesh.vllm.allowance import Allowance
from specmesh.vllm.faults import Faults
from specmesh.vllm.row_texts import BatchRows, RowIds, RowText, RowTexts
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.vllm")

_QUIET = 2.0
"""Seconds without a call after which all texts are over."""
MOST_OPENED_IDS = 8192
"""Ids after which a call opens no other text: to take in 2,000 takes 0.2 ms.

The other texts wait for the next call. It is a number of ids, not of texts, so that short texts
which come together are opened together. Their number says which gate governs them.
"""
LOCK_PATIENCE = 5e-3
"""Seconds that a call waits for the other thread, which takes microseconds: no step hangs on it."""
MAY_WAIT = (vev.ToClient, vev.Forgotten, vev.Ran, vev.Noted)
"""Effects that only statistics and the log need."""
CANCELLED = m.FinishReason.CANCELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetBounds:
    """The bounds of an answer, without which the server would end, and the ids that end texts.

    drafts: most of a row. n_vocab: each id is below it.
    """

    drafts: int
    n_vocab: int
    end_ids: frozenset[int]


class Drafting:
    """Drafts for the rows of a server.

    `propose` is called on the server's thread, `put` on any, all else on that of the frames.

    faults: the unexpected errors of both.
    """

    stuck = False
    """Always False: whether a step of the server hangs is not seen here."""

    def __init__(
        self,
        core: VerifierCore,
        bounds: TargetBounds,
        deliver: Callable[[list[vev.Effect]], object],
        *,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without texts.

        deliver: takes effects of the core, on either thread.
        patience: seconds that a lone text may wait for drafts.
        """
        self._core = core
        self._bounds = bounds
        self._deliver = deliver
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._inbox = deque[tuple[vev.Happened, float]]()
        self._arrived = threading.Event()
        self._effects: list[vev.Effect] = []
        self._urgent = False  # one of them cannot wait for `turn`
        self._texts = RowTexts()
        self._by_seq: dict[int, RowText] = {}
        self._opened = 0
        self._step: ev.Step | None = None
        self._begun_at = 0.0
        self._called_at = -inf
        self._waited = 0.0  # seconds of the call that is being answered
        self._allowance = Allowance()
        self.faults = Faults()

    # --- the thread of the frames

    def put(self, event: vev.Happened, at: float) -> None:
        """Hand over an event. It is handled now, or by the call that is being answered."""
        self._inbox.append((event, at))
        self._arrived.set()
        self.turn()

    def turn(self) -> None:
        """Handle the events that wait, unless a call is being answered."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            with self._surviving():
                self._handle_events()
                self._send()
        finally:
            self._lock.release()

    def end_if_quiet(self) -> None:
        """Close all texts if there was no call for _QUIET seconds."""
        if self._clock() < self._called_at + _QUIET or not self._texts.by_row:
            return
        with self._lock, self._surviving():
            now = self._clock()
            self._finish({}, now, other_work=True)
            for text in self._texts.forget():
                self._close(text, CANCELLED, now)
            self._core.next_step(now)  # which notes that there is no session
            self._send()

    # --- the thread of the server

    def propose(
        self, sampled: Sequence[Sequence[int]], lengths: Sequence[int], ids: RowIds
    ) -> list[list[int]]:
        """Return the drafts of each row for the next step.

        sampled: ids that each row got. lengths: of each row, these included. ids: of all rows.
        """
        now = self._clock()
        answer: list[list[int]] = [[] for _ in sampled]
        if self.faults.off or self._allowance.begin_call(now):
            return answer
        if not self._lock.acquire(timeout=LOCK_PATIENCE):
            return answer  # the other thread got no core in the middle of its work
        try:
            answer = self._answer(BatchRows(lengths, sampled, ids), now)
            self.faults.answered()
        except Exception as error:  # noqa: BLE001 - whatever it is, the server's texts go on
            self._begin_anew(error)
        finally:
            self._lock.release()
        if self._inbox:
            self.turn()
        ended = self._clock()
        self._allowance.end_call(ended - now - self._waited, ended)
        return answer

    def _answer(self, rows: BatchRows, now: float) -> list[list[int]]:
        """End the step that brought these rows, and begin the next; return its drafts by row."""
        self._called_at = now
        self._waited = 0.0
        if self._inbox:
            self._handle_events()
        self._end_step(rows, now)
        if len(self._texts.by_row) < len(rows.new):
            self._open_texts(rows, now)
        if self._urgent:
            self._send()
        return self._begin_step(rows)

    def _handle_events(self) -> None:
        """Handle all events that wait, or drop them after too many errors."""
        if self.faults.off:
            self._inbox.clear()
        while self._inbox:
            event, at = self._inbox.popleft()
            self._keep(self._core.handle(event, at))

    def _keep(self, effects: list[vev.Effect]) -> None:
        """Keep effects of the core until they are delivered."""
        self._effects += effects
        for effect in effects:
            if not isinstance(effect, MAY_WAIT):
                self._urgent = True

    def _send(self) -> None:
        """Deliver the effects of the core.

        A call delivers them only if one is urgent. The others wait for `turn`: to wake the other
        thread would cost a step more than all else that is done here.
        """
        effects = self._effects
        self._effects = []
        self._urgent = False
        if effects:
            self._deliver(effects)

    # --- errors

    @contextmanager
    def _surviving(self) -> Generator[None]:
        """Begin anew after an unexpected error; the lock is held."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, frames and statistics go on
            self._begin_anew(error)

    def _begin_anew(self, error: Exception) -> None:
        """Drop all texts after an unexpected error: the next call opens them again."""
        self.faults.came()
        self._texts = RowTexts()
        self._by_seq = {}
        self._step = None
        meaning = "all texts are begun anew"
        if self.faults.off:
            meaning = "there were too many such errors: nothing is drafted until vLLM is restarted"
        log.error("drafting_failed", error=f"{type(error).__name__}: {error}", meaning=meaning)
        # If this raises too, the texts stay as they are, and the next call fails again.
        with suppress(Exception):
            self._keep(self._core.abandon(self._clock()))
            self._send()

    # --- a step is over

    def _end_step(self, rows: BatchRows, now: float) -> None:
        """Give each text the ids that its row got, and close those that are over."""
        gone = self._texts.matched(rows)
        by_row = self._texts.by_row
        grown: dict[int, Sequence[int]] = {}  # by sequence
        astray: list[int] = []  # rows whose text has gone on unseen
        accepted = 0
        for index, text in by_row.items():
            new = rows.new[index]
            if rows.lengths[index] != text.length + len(new):
                astray.append(index)
            elif new and text.session is not None:
                grown[text.session.slot.seq] = new
                accepted += len(new) - 1
        self._finish(grown, now, other_work=len(grown) < len(rows.new))
        if accepted:
            self._allowance.saved(accepted, len(grown))
        for text in gone:
            self._close(text, CANCELLED, now)
        for index in astray:
            self._close(by_row.pop(index), CANCELLED, now)
        for index, text in list(by_row.items()):
            self._note(text, rows, index, now)

    def _finish(self, grown: dict[int, Sequence[int]], now: float, *, other_work: bool) -> None:
        """End the step of the core.

        grown: the ids that texts got, by sequence.
        other_work: the server's step had other rows too, as of prompts that it has read.
        """
        step = self._step
        if step is None and grown:
            # No step was begun while the prompt of the only text was read. But a step has brought
            # its first id.
            step = self._formed(now)
            other_work = True
        if step is None:
            return
        self._step = None
        result: list[ev.Rows] = []
        for span in step.spans:
            new = grown.get(span.seq)
            result.append(None if new is None else ChosenIds(new))
        begun_at = min(self._begun_at, now)
        self._keep(self._core.finish(step, result, begun_at, now, other_work=other_work))

    def _note(self, text: RowText, rows: BatchRows, index: int, now: float) -> None:
        """Bring a text up to date after a step: it goes on, is over, or is begun anew."""
        session = text.session
        new = rows.new[index]
        if text.unreadable:
            text.ids.extend(new)
            text.length = rows.lengths[index]
            return
        if session is None and new and not text.endless:
            # An id that ends texts has closed it, but its request ignores such ids.
            again = self._open(rows, index, now)
            again.endless = True
            self._texts.by_row[index] = again
            return
        if session is not None and len(session.prefix.ids) != rows.lengths[index]:
            # Its drafts were another row's: the core begins it anew.
            self._close(text, CANCELLED, now)
            del self._texts.by_row[index]
            return
        if new:
            text.length = rows.lengths[index]
            ends = not text.endless and not self._bounds.end_ids.isdisjoint(new)
            if ends or (session is not None and session.finished is not None):
                self._close(text, m.FinishReason.STOP, now)

    def _close(self, text: RowText, reason: m.FinishReason, now: float) -> None:
        """End the session of a text."""
        session = text.session
        if session is None:
            return
        text.session = None
        del self._by_seq[session.slot.seq]
        if session.finished is None:
            left = vev.ClientLeft(text.number, reason)
            self._keep(self._core.handle(left, now))

    # --- texts begin

    def _open_texts(self, rows: BatchRows, now: float) -> None:
        """Open the texts of rows that have none."""
        by_row = self._texts.by_row
        room = MOST_OPENED_IDS
        for index in range(len(rows.new)):
            if index not in by_row and room > 0:
                by_row[index] = self._open(rows, index, now)
                room -= rows.lengths[index]

    def _open(self, rows: BatchRows, index: int, now: float) -> RowText:
        """Open the text that a row shows."""
        self._opened += 1
        length = rows.lengths[index]
        shown = rows.ids[index, :length]
        if shown.min() < 0 or shown.max() >= self._bounds.n_vocab:
            return RowText(
                number=self._opened,
                session=None,
                ids=array("i", shown.tobytes()),
                length=length,
                row=index,
                unreadable=True,
            )
        known = tuple(shown.tolist())
        opening = followed(self._opened, known, sharing=len(rows.new))
        self._keep(self._core.handle(opening, now))
        session = self._core.sessions()[-1]
        text = RowText(
            number=self._opened, session=session, ids=session.prefix.ids, length=length, row=index
        )
        self._by_seq[session.slot.seq] = text
        return text

    # --- a step begins

    def _begin_step(self, rows: BatchRows) -> list[list[int]]:
        """Begin a step of the core; return its drafts by row."""
        answer: list[list[int]] = [[] for _ in rows.new]
        alone = len(answer) == 1
        if not self._by_seq or (alone and not rows.new[0]):
            return answer  # drafts for a prompt that is read are of no use
        step = self._awaited() if alone else self._formed(self._clock())
        self._begun_at = self._clock()
        self._step = step
        if step is None:
            return answer
        for span in step.spans:
            if len(span.ids) > 1:
                row = self._by_seq[span.seq].row
                if rows.new[row]:
                    answer[row] = self._checked(span.ids[1:])
        return answer

    def _formed(self, now: float) -> ev.Step | None:
        """Return the next step with what is in hand; None without any session."""
        step = self._core.next_step(now)
        if isinstance(step, ev.Wait) and step.until < inf:
            step = self._core.next_step(step.until)  # as if the drafts had not come in time
        return step if isinstance(step, ev.Step) else None

    def _awaited(self) -> ev.Step | None:
        """Return the next step of a lone text, which may wait for its drafts."""
        now = self._clock()
        latest = now + self._patience
        while True:
            step = self._core.next_step(now)
            if not isinstance(step, ev.Wait):
                break
            until = min(step.until, latest)
            if until <= now or step.until == inf:
                return self._formed(now)
            self._arrived.clear()
            if not self._inbox:
                self._arrived.wait(until - now)
            self._handle_events()
            if self._urgent:
                self._send()
            begun = now
            now = self._clock()
            self._waited += now - begun
        return step if isinstance(step, ev.Step) else None

    def _checked(self, drafts: Sequence[int]) -> list[int]:
        """Return drafts as far as the server can take them."""
        checked: list[int] = []
        for draft in drafts[: self._bounds.drafts]:
            if not 0 <= draft < self._bounds.n_vocab:
                break
            checked.append(draft)
        return checked
