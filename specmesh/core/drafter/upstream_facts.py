"""What a drafter knows of one verifier: whether it is there, its load, and why it may not suit."""

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.wire import messages as m

UNKNOWN_STEP = 0.05  # seconds of a step if the verifier has sent no load


class UpstreamFacts:
    """The facts about the verifier at `address`. Its `Upstream` changes them, others read.

    info: its WELCOME; None while it is away.
    known: its last WELCOME; None before the first.
    vocabulary: its own, once known.
    load: its last PING or PONG.
    round_trip: to it, in seconds.

    Reasons for people, each None or empty if it does not apply:

    kept_out: why it, or the keys here, keep this drafter out.
    unknown: why the name of its host is not known.
    unusable: why its vocabulary cannot be used.
    foreign: why nothing can be drafted in its vocabulary.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.info: m.Welcome | None = None
        self.known: m.Welcome | None = None
        self.vocabulary: Vocabulary | None = None
        self.kept_out: str | None = None
        self.unknown = ""
        self.unusable = ""
        self.foreign = ""
        self.load: m.Ping | m.Pong = m.Pong(0)
        self.round_trip = 0.0

    def welcomed(self, info: m.Welcome) -> None:
        """Note that it is there."""
        self.info = info
        self.known = info

    def lost(self) -> None:
        """Note that it went away."""
        self.info = None
        self.load = m.Pong(0)

    @property
    def n_vocab(self) -> int:
        """Return the size of its vocabulary, by its last WELCOME; 0 before the first."""
        return self.known.n_vocab if self.known is not None else 0

    @property
    def refusal(self) -> str | None:
        """Return why it serves no client here, although it may answer."""
        return self.kept_out or self.unusable or None

    @property
    def trouble(self) -> str:
        """Return why it is away."""
        why = "is it running, and reachable from here?"
        if self.unknown:
            why = f"the name of its host is not known here ({self.unknown})."
        return self.refusal or f"the verifier at {self.address} does not answer: {why}"

    def token_seconds(self, own: int) -> float:
        """Return the seconds per token that one more text can expect.

        They are those of a step, times the sessions that the verifier has or queues for each of its
        places.

        own: requests that it has from here, which may be newer than its load.
        """
        load = self.load
        step = max(load.step_ms, 0.0) / 1e3 or UNKNOWN_STEP
        others = max(load.sessions + load.queued, own)
        return step * (1 + others / (load.max_sessions or 1))
