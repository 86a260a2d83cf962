"""Events into sessions, effects out of them, and the rows that they want from an engine.

The token frames of one side are events at the other: the shells carry them across.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specmesh.core.kv_orders import KVCut, KVDrop, KVOffload, KVOrder, KVSave
from specmesh.core.requests import PromptRead, Scored
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.sampling.constraint import Constraint, Grammar
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.statistics.snapshot import PrefixCacheSection, WindowSection
from specmesh.core.target_rows import TargetRows
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m


class Rollback(NamedTuple):
    """The session's sequence is to keep its first `length` ids."""

    length: int


@dataclass(frozen=True, slots=True)
class Noted:
    """A line for the log."""

    name: str
    fields: dict[str, object]
    level: str = "info"


# --- the verifier's session


@dataclass(frozen=True, slots=True)
class Finish:
    """The session is over. error: of its own request, if that ended it."""

    reason: m.FinishReason
    error: SpecmeshError | None = None


class Prefill(NamedTuple):
    """Decode `ids` at `position`; nothing is chosen from their logits.

    stepwise: as a step that verifies does. Steps of a constant width generated them, or their
        log-probabilities are wanted.
    most_rows: of the step, for all prompts together; None for as many as there may be.
    last: the id after them, whose logits choose the first token in the same step; None if it has a
        step of its own.
    """

    position: int
    ids: Sequence[int]
    stepwise: bool = False
    most_rows: int | None = None
    last: int | None = None

    @property
    def rows(self) -> int:
        """Return its rows in a step."""
        if self.last is None:
            return len(self.ids)
        return len(self.ids) + 1


class Verify(NamedTuple):
    """Decode [last committed id, *drafts] at `position`, with logits on every row.

    sources: of the drafts, in order.
    """

    position: int
    last: int
    drafts: tuple[int, ...]
    sources: tuple[SourceDrafts, ...] = ()


class Wait(NamedTuple):
    """Do nothing until a time, unless an event comes before."""

    until: float


class Span(NamedTuple):
    """Consecutive rows of one sequence: `ids` at absolute positions from `position` on.

    logits: for each row, or for none.
    """

    seq: int
    position: int
    ids: tuple[int, ...]
    logits: bool

    @property
    def end(self) -> int:
        """Return the position after the last row."""
        return self.position + len(self.ids)


class Step(NamedTuple):
    """One step of the target: carry the orders out, then decode the spans.

    threads: CPU threads from this step on; None if unchanged.
    """

    orders: tuple[KVOrder, ...]
    spans: tuple[Span, ...]
    threads: int | None = None

    @property
    def rows(self) -> int:
        """Return the number of rows of all spans."""
        return sum(len(span.ids) for span in self.spans)


Rows = TargetRows | None
"""The rows of a span; None if it has none."""
VerifierEffect = m.Truth | m.Sync | m.Nack | PromptRead | Scored | Round | Rollback | Finish
Plan = Prefill | Verify | Wait

# --- the drafter's session


class Learned(NamedTuple):
    """The committed text grew.

    ids: what it grew by. accepted: how many of them were drafts. own: drafts of this drafter.
    sync: a SYNC brought them, of any number of rounds.
    """

    ids: tuple[int, ...]
    accepted: int = 0
    own: int = 0
    sync: bool = False


DrafterEffect = m.Draft | m.DraftProbs | m.Nack | Learned

# --- the drafter


class SessionKey(NamedTuple):
    """The address of a session in a drafter; it is never used again.

    upstream: place of its verifier in the settings. number: of the session among that one's.
    """

    upstream: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """A verifier has opened a session.

    session: the verifier's number of it. n_vocab, end_ids: of that verifier.
    cached: its ids may be kept for later sessions. learns: effects include Learned.
    """

    key: SessionKey
    session: int
    n_vocab: int
    n_prompt: int
    params: SamplingParams
    end_ids: Collection[int] = ()
    grammar: Grammar | None = None
    cached: bool = True
    learns: bool = True


class FrameReceived(NamedTuple):
    """A session's verifier has sent a frame."""

    key: SessionKey
    frame: m.Truth | m.Sync | m.Nack


@dataclass(frozen=True, slots=True)
class CloseSession:
    """A session is over. Its slot becomes free, and DraftingEnded is the last effect for it."""

    key: SessionKey


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """The grammar of a session is compiled."""

    key: SessionKey
    constraint: Constraint


@dataclass(frozen=True, slots=True)
class UpstreamChanged:
    """A verifier's round trip in seconds, and whether the draft model can draft in its ids."""

    upstream: int
    round_trip: float
    speaks: bool


@dataclass(frozen=True, slots=True)
class UseThreads:
    """CPU threads of the draft model from its next step on."""

    threads: int


CoreEvent = (
    OpenSession | FrameReceived | CloseSession | CompiledGrammar | UpstreamChanged | UseThreads
)


class DraftRow(NamedTuple):
    """Append `ids` of a text to a sequence.

    With a sampler, then draft at most `draft_n` ids, one after the other.

    position: cells that the sequence fills before.
    text_position: position of the first of the ids in the text.
    bos: 1 if the model's BOS is appended before them, else 0.
    """

    key: SessionKey
    seq: int
    position: int
    text_position: int
    ids: tuple[int, ...]
    sampler: Sampler | None
    draft_n: int = 1
    bos: int = 0


class DraftStep(NamedTuple):
    """One step of the draft model.

    1. Carry the cuts out.
    2. Save states, and drop others.
    3. Offload the sequences `offloads`.
    4. Run each row that begins where its sequence then ends.

    upstream: the rows are in the ids of this verifier.
    threads: CPU threads from this step on, if they change.
    """

    upstream: int
    cuts: tuple[KVCut, ...]
    rows: tuple[DraftRow, ...]
    threads: int | None = None
    offloads: tuple[KVOffload, ...] = ()
    saves: tuple[KVSave | KVDrop, ...] = ()


class DraftedRows(NamedTuple):
    """What a step brought.

    held: cells left in each sequence that was cut: fewer if its memory cannot go back so far.
    tokens: the drafts of each row: fewer than asked for if the model has no more.
    """

    held: Mapping[int, int]
    tokens: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class DraftingEnded:
    """Nothing follows for a session.

    draft_tokens, draft_seconds: drafts made for it, and the seconds that they took.
    """

    draft_tokens: int
    draft_seconds: float


SessionEffect = m.Draft | m.DraftProbs | m.Nack | Learned | Grammar | Noted | DraftingEnded
"""What a drafter's core wants for a session; a Grammar is to be compiled."""


@dataclass(slots=True, kw_only=True)
class WorkReport:
    """Work of a drafter since its last report.

    ended: when the last step did. seconds: of all steps; draft_seconds: of those that drafted.
    draft_tokens: drafts made. rounds: of the verifiers. accepted: of this drafter's drafts.
    committed: ids by these rounds. prefix_cache: None if it has not changed.
    read: ids that the draft model read, its own drafts among them.
    windows: counts since the start; None if the draft model reads none.
    """

    ended: float = 0.0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    draft_tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    committed: int = 0
    read: int = 0
    windows: WindowSection | None = None
    prefix_cache: PrefixCacheSection | None = None


CoreEffect = tuple[SessionKey, SessionEffect] | WorkReport
