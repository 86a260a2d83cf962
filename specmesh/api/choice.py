"""One of the answers to a request: the daemon's events as the typed stream."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from specmesh.api.generation import Generation
from specmesh.api.stream import (
    TOOL_CALLS,
    Call,
    Content,
    Event,
    NewTokens,
    ScoredToken,
    Text,
    Usage,
)
from specmesh.api.turn_parts import turn_parts_of
from specmesh.core.draft_sources import PREDICTION
from specmesh.core.fields import at
from specmesh.core.requests import (
    ClientEvent,
    Finished,
    PromptRead,
    Request,
    Scored,
    Started,
    Tokens,
)
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import SessionParams
from specmesh.core.text.stop import ShownText, StopTextFilter
from specmesh.core.token_sources import TARGET, names_of, runs_of
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.wire.messages import FinishReason


def nothing() -> None:
    """Do nothing."""


class Choice:
    """One answer: the events that its client has not been sent yet.

    The daemon's events arrive in any thread's order by `on_event`; `add` reads one, `take` returns
    the stream since the last call. The answer's ids are in four states, from left to right:

        known to the client | sent | in `_ids`: their text is in `_text` | in `_held`: their text
        may begin a stop string, or ends within a character

    Behind them, ids in `_undecoded` have no text yet: they are decoded together.

    index: of the choice in its answer.
    request: with the ids that the client knows.
    arrived: the daemon's events that nobody has taken.
    on_arrival: called after an event has arrived.
    end: the last event, once it has come.
    merged: roles whose messages were joined for the model's template.
    generated: ids whose text is whole, those that the client knows among them.
    """

    def __init__(
        self, index: int, request: Request, generation: Generation, vocabulary: Vocabulary
    ) -> None:
        self.index = index
        self.request = request
        self.arrived: list[ClientEvent] = []
        self.on_arrival: Callable[[], None] = nothing
        self.end: Finished | None = None
        self.merged: tuple[str, ...] = ()
        self.generated = request.known
        self._generation = generation
        self._vocabulary = vocabulary
        self._started: Started | None = None
        self._progress: PromptRead | None = None
        self._prompt: tuple[int, ...] = ()  # to be echoed
        self._prompt_length = 0  # characters of the echoed prompt
        self._text = ""
        self._ids: list[int] = []
        self._accepted = 0
        self._accepted_text: str | None = None
        self._scored: list[ScoredToken] = []
        self._sources: list[str] = []  # of the ids, if they are wanted
        self._begin(request.params)

    def on_event(self, event: ClientEvent) -> None:
        """Note an event of the daemon."""
        self.arrived.append(event)
        self.on_arrival()

    def add(self, event: Started | PromptRead | Scored | Tokens | Finished) -> None:
        """Read an event."""
        match event:
            case Scored():
                self._echo(event.logprobs)
            case Tokens():
                self._echo()
                self._add_tokens(event)
            case Started():
                self._start(event)
            case PromptRead():
                self._progress = event
            case Finished():
                self._echo()
                self._decode()
                self._show(self._filter.finish())
                self.end = event
            case _:
                assert_never(event)

    def take(self) -> list[Event]:
        """Return the stream since the last call."""
        if self._undecoded:
            self._decode()
        events: list[Event] = []
        if self._started is not None:
            events.append(self._started)
            self._started = None
        progress = self._progress
        self._progress = None
        end = self.end
        has_tokens = self._ids or self._accepted_text is not None
        if self._text or has_tokens or end is not None:
            events += self._content()
        elif progress is not None:
            events.append(progress)
        if end is not None:
            events.append(self._finished(end))
        return events

    def counted(self, path: str) -> int:
        """Return a number at a path of the daemon's report; 0 without one."""
        value = at(self.end.report, path) if self.end is not None else None
        return value if isinstance(value, int) else 0

    def _begin(self, params: SessionParams) -> None:
        """Begin after the ids that the client knows, with the parameters of the text.

        A request that resumes a text by its name has them only from the daemon.
        """
        self._has_logprobs = params.logprobs is not None
        self._has_sources = params.sources
        self._parts = None
        if self._generation.chat:
            splits_thoughts = self._generation.splits_thoughts
            self._parts = turn_parts_of(params, splits_thoughts=splits_thoughts)
        self._filter = StopTextFilter(self._vocabulary, params.stop)
        self._undecoded: list[int] = []
        self._held: list[int] = []
        self._held_logprobs: list[Logprob | None] = []
        self._held_sources: list[str] = []
        self._known_calls: list[Content] = []
        known = self.request.generated
        shown = self._filter.feed(known)
        self._skipped = len(known) - len(shown.begins)  # known ids whose text is held back
        if self._parts is not None:
            parts = self._parts.feed(shown.text, over=False)
            if not self._generation.stream:  # each call of a whole answer is whole
                self._known_calls = [part for part in parts if isinstance(part, Call)]

    def _start(self, event: Started) -> None:
        self._started = event
        if event.params is not None and event.params != self.request.params:
            self._begin(event.params)
            self.merged = event.params.merged
        if self.request.params.echo:
            self._prompt = event.prompt_ids
            if not self._has_logprobs:
                self._echo()

    def _echo(self, scores: Sequence[Logprob | None] = ()) -> None:
        """Begin the text with the prompt, if it is to be echoed and was not yet.

        scores: log-probabilities of its ids but the first, which has none.
        """
        ids = self._prompt
        if not ids:
            return
        self._prompt = ()
        prompt_filter = StopTextFilter(self._vocabulary, ())
        shown = prompt_filter.feed(ids)
        self._text += shown.text + prompt_filter.finish().text
        self._prompt_length = len(self._text)
        if self._has_logprobs:
            unknown = [None] * len(ids)
            self._score(ids, shown.begins, [None, *scores, *unknown])

    def _score(
        self, ids: Sequence[int], begins: Sequence[int], logprobs: Sequence[Logprob | None]
    ) -> None:
        """Note the log-probabilities of ids; begins: where their texts begin in the answer."""
        for token, begin, logprob in zip(ids, begins, logprobs, strict=False):
            self._scored.append(ScoredToken(token, begin, logprob, self._vocabulary))

    def _add_tokens(self, event: Tokens) -> None:
        ids = event.ids
        accepted = event.accepted
        self._accepted += accepted
        if self._has_logprobs:
            self._held_logprobs += event.logprobs or [None] * len(ids)
        if self._has_sources:
            self._held_sources += names_of(event.sources, len(ids))
        if not self.request.rounds:
            self._undecoded += ids
            return
        before = len(self._text)
        self._undecoded += ids[:accepted]
        self._decode()
        self._accepted_text = self._text[before:]
        self._undecoded += ids[accepted:]

    def _decode(self) -> None:
        ids = self._undecoded
        self._undecoded = []
        self._held += ids
        self._show(self._filter.feed(ids))

    def _show(self, shown: ShownText) -> None:
        """Add to the text, and to the ids those whose text is whole now."""
        self._text += shown.text
        begins = shown.begins
        if self._skipped:
            known = min(self._skipped, len(begins))
            self._skipped -= known
            begins = begins[known:]
        count = len(begins)
        ids = self._held[:count]
        del self._held[:count]
        self.generated += count
        self._ids += ids
        if self._has_sources:
            self._sources += self._held_sources[:count]
            del self._held_sources[:count]
        if self._has_logprobs:
            begins = [self._prompt_length + begin for begin in begins]
            self._score(ids, begins, self._held_logprobs)
            del self._held_logprobs[:count]

    def _content(self) -> list[Content]:
        """Return the content since the last call, its tokens on the last part."""
        text = self._text
        tokens = self._new_tokens()
        self._text = ""
        if self._parts is None:
            return [Text(text, tokens)]
        end = self.end
        cut = end is not None and end.reason != FinishReason.STOP
        parts = self._known_calls + self._parts.feed(text, over=end is not None, cut=cut)
        self._known_calls = []
        if not parts:
            return [Text("", tokens)]
        parts[-1].tokens = tokens
        return parts

    def _new_tokens(self) -> NewTokens:
        """Return the tokens since the last call."""
        accepted = 0
        if self._ids or self._accepted_text is not None:
            accepted = self._accepted
            self._accepted = 0
        scored = self._scored if self._has_logprobs else None
        tokens = NewTokens(
            self._ids, accepted=accepted, accepted_text=self._accepted_text, scored=scored
        )
        if self._has_sources:
            tokens.sources = runs_of(self._sources)
            tokens.accepted = len(self._sources) - self._sources.count(TARGET)
            self._sources = []
        self._ids = []
        self._accepted_text = None
        self._scored = []
        return tokens

    def _finished(self, end: Finished) -> Finished:
        """Return the last event, with the calls of tools as its reason where they are.

        It has the stop string that was found. The report counts no ids of a stop string.
        """
        reason = end.reason
        if reason == FinishReason.STOP and self._parts is not None and self._parts.called:
            reason = TOOL_CALLS
        report = end.report
        if "generated_tokens" in report:
            report = report | {"generated_tokens": self.generated}
        return replace(end, reason=reason, report=report, stop=self._filter.found)


def usage_of(choices: Sequence[Choice]) -> Usage:
    """Return the usage of all choices."""
    prompt = cached = generated = accepted = drafted = 0
    drafts = f"by_source.{PREDICTION}"
    for choice in choices:
        generated += choice.generated
        accepted += choice.counted(f"{drafts}.accepted")
        drafted += choice.counted(f"{drafts}.drafted")
        is_first = choice.request.choice == 0
        if is_first and choice.end is not None:
            prompt += len(choice.end.prompt_ids)
            cached += choice.counted("cached_tokens")
    return Usage(
        prompt=prompt,
        cached=cached,
        generated=generated,
        accepted=accepted,
        rejected=drafted - accepted,
    )
