"""Events into the session machines, effects out of them, and what they want of an engine.

What one machine says is an event at the other: the shells carry `Told`, `Drafted`, `Shadowed` and `Nacked` across.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.proposal import Proposal
from specmesh.errors import SpecmeshError

# --- between the machines; `crc` is the CRC-32 of all ids before `base`


@dataclass(frozen=True, slots=True)
class Told:
    """The verifier has committed `ids` from `base`. With `sync` this replaces what is believed beyond `base`."""

    base: int
    crc: int
    ids: tuple[int, ...]
    draft_n: int
    sync: bool = False


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts from `base`, sampled from `proposals`: one for each, or none at all."""

    base: int
    crc: int
    ids: tuple[int, ...]
    proposals: tuple[Proposal | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Shadowed:
    """What the drafter would have drafted at positions from `base` on, each after the true ids before it."""

    base: int
    crc: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nacked:
    """The sender holds `base` ids with this CRC and wants what follows."""

    base: int
    crc: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep the first `length` ids in the model's memory."""

    length: int


# --- the verifier's session


@dataclass(frozen=True, slots=True)
class Detached:
    """The session's drafter is gone."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`count` more ids of the prompt are in the target's memory."""

    count: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step over [last committed id, *drafts] is done: one row of logits for each, float32 (k + 1, n_vocab).

    sessions: how many had rows in it.
    """

    drafts: tuple[int, ...]
    logits: NDArray[np.float32]
    seconds: float
    sessions: int = 1


@dataclass(frozen=True, slots=True)
class Cancelled:
    """End with this reason: the client is gone, or the daemon stops."""

    reason: str


@dataclass(frozen=True, slots=True)
class Emit:
    """Give the client a round: `ids` are new, the first `accepted` of them were drafts; `drafts` were verified and the
    first `tested` of them compared. An end id is counted where it was an accepted draft, and never shown. logprobs:
    of each id, where asked for. The first `forced` drafts were a grammar's own."""

    ids: tuple[int, ...]
    accepted: int
    drafts: tuple[int, ...]
    tested: int
    logprobs: tuple[Logprob | None, ...] = ()
    forced: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """The session is over: stop, length or the reason of its cancellation; `error` where its own request broke it."""

    reason: str
    error: SpecmeshError | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """Decode `ids` at `position`; nothing is chosen from their logits.

    stepwise: they were generated, by steps of a constant width, and are to be computed by such a step again.
    """

    position: int
    ids: tuple[int, ...]
    stepwise: bool = False


@dataclass(frozen=True, slots=True)
class Verify:
    """Decode [last committed id, *drafts] at `position`, logits on every row."""

    position: int
    last: int
    drafts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before time `until`, unless an event comes first."""

    until: float


VerifierEvent = Drafted | Shadowed | Nacked | Detached | Prefilled | Stepped | Cancelled
VerifierEffect = Told | Nacked | Emit | Trim | Finish
Plan = Prefill | Verify | Wait

# --- the drafter's session


@dataclass(frozen=True, slots=True)
class Predict:
    """Take in `ids`; guess the next id where `guess`."""

    ids: tuple[int, ...]
    guess: bool


@dataclass(frozen=True, slots=True)
class Predicted:
    """The draft model took in what it was given; `token` is its guess, None where it has none (or was not asked).

    `started` is when that work began. `proposal` is what the guess was sampled from, if it was.
    """

    count: int
    token: int | None
    started: float
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """Truth grew by `ids`; `accepted` of them were in this drafter's own chain. sync: SYNC told so, of any rounds."""

    ids: tuple[int, ...]
    accepted: int
    sync: bool = False


DrafterEvent = Told | Nacked | Predicted
DrafterEffect = Drafted | Shadowed | Nacked | Trim | Learned
