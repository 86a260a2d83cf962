"""A round: one verification step of a session, and what it committed."""

from typing import NamedTuple

from specmesh.core.requests import Tokens


class SourceDrafts(NamedTuple):
    """Consecutive drafts of a step that one source proposed."""

    source: str
    drafted: int
    tested: int = 0
    accepted: int = 0
    exact: bool = False


class Round(NamedTuple):
    """One step's part for one session: statistics, log, client and sources read it as it is.

    It is a tuple because each step makes one; so are other events and effects of each step.

    session: its number. base: ids that were committed before it.
    ids: committed by it; the first `accepted` of them were drafts. An end id is the last one.
    text: the same as a client is shown them, without an end id.
    drafts: verified by it. tested: how many of them were compared.
    by_source: the drafts by their source, in order.
    generated: ids that count as generated: all but an end id.
    over: an end id, a stop string or the grammar ends the text with these ids.
    first: the session has had no round before.
    at: when the step ended. sessions: how many had rows in it.
    """

    session: int
    base: int
    ids: tuple[int, ...]
    accepted: int
    text: Tokens
    drafts: tuple[int, ...]
    tested: int
    by_source: tuple[SourceDrafts, ...]
    generated: int
    over: bool
    first: bool
    at: float
    sessions: int
