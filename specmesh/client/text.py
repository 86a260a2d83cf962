"""A text of the commands as its chunks come, and what a terminal can show of it."""

from dataclasses import dataclass, field

from specmesh.core.fields import Json, at, ids_at, object_at, objects_at, sources_at


@dataclass(slots=True, kw_only=True)
class GeneratedText:
    """A completion as its chunks come.

    seed: that it was sampled with.
    begun: time of the request, on the clock of the caller.
    arrivals: times of the chunks with tokens.
    pieces: of its text, each with the source of most of its accepted drafts, which chunks have with
        `rounds` and `sources`; "" for text without drafts, or of a source that is not known.
    report: the daemon's, once the text has ended.
    """

    seed: object = None
    begun: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    pieces: list[tuple[str, str]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    finish_reason: object = None
    report: Json = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return the whole text so far."""
        return "".join(piece for piece, _ in self.pieces)

    @property
    def ended(self) -> float:
        """Return the time of the last tokens."""
        return self.arrivals[-1] if self.arrivals else self.begun

    def take(self, chunk: Json, now: float = 0.0) -> tuple[str, str]:
        """Read a chunk; return its text: accepted drafts, and the rest."""
        [choice] = objects_at(chunk, "choices")
        extra = object_at(chunk, "specmesh")
        drafted = str(extra.get("accepted_text", ""))
        own = str(choice["text"])[len(drafted) :]
        self.pieces += [(drafted, _most_frequent(extra)), (own, "")]
        ids = ids_at(extra, "token_ids")
        if ids:
            self.ids += ids
            self.arrivals.append(now)
        self.logprobs += objects_at(extra, "logprobs")
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.report = object_at(extra, "report") or self.report
        self.prompt_ids = ids_at(extra, "prompt_token_ids") or self.prompt_ids
        if "request" in extra:
            self.seed = at(extra, "request.seed")
        return drafted, own


def _most_frequent(extra: Json) -> str:
    """Return the source of most drafts of a chunk; "" if it names none."""
    most = 0
    found = ""
    for name, count in sources_at(extra, "source"):
        if name != "target" and count > most:
            most = count
            found = name
    return found


def printable(text: str) -> str:
    """Return a peer's text without the characters that control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
