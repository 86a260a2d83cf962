"""The choices of an answer: the events of each one's request as its text, ids and log-probabilities."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from specmesh.api.deltas import deltas_of
from specmesh.api.shapes import SCHEMA_VERSION, AnswerToken, Shape, new_id, server_sent, written
from specmesh.core.fields import Json, list_at
from specmesh.core.requests import ClientEvent, Finished, Request, Scored, Started, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import SessionParams
from specmesh.core.text.stop import ShownText, StopTextFilter
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import RequestError, SpecmeshError
from specmesh.wire.messages import FinishReason


def numbered(requests: Sequence[Request], count: int, *, chat: bool) -> list[Request]:
    """Return `count` requests for each one, with consecutive seeds and names of their own; the first keeps its own."""
    made = list[Request]()
    for one in requests:
        for number in range(count):
            sampling = replace(
                one.params.sampling, seed=(one.params.sampling.seed + number) % 2**32
            )
            params = replace(one.params, sampling=sampling)
            made.append(
                replace(one, params=params, choice=number, id=new_id(chat) if made else one.id)
            )
    return made


def nothing() -> None:
    pass


class Choice:
    """A choice of an answer: what its client has not been sent yet of the events of its request. The text begins after
    what the client knows, and ends before a stop string. heard: called once events have come. resumable: also say what
    is needed to go on with the text. end: the last event, once it came. merged: see `SessionParams`."""

    def __init__(
        self,
        shape: Shape,
        request: Request,
        vocabulary: Vocabulary,
        *,
        resumable: bool = False,
        splits: bool = False,
        schema_field: str = "",
    ) -> None:
        self.shape, self.request, self._splits = shape, request, splits
        self._schema_field = schema_field
        self.end: Finished | None = None
        self.merged: tuple[str, ...] = ()
        self.heard: Callable[[], None] = nothing
        self._vocabulary, self._resumable = vocabulary, resumable
        self._events: list[ClientEvent] = []
        self._before, self._between = shape.frame()
        self.generated = request.known
        self._text, self._accepted = "", 0
        self._ids: list[int] = []
        self._tokens: list[AnswerToken] = []  # where log-probabilities are wanted
        self._echoed: tuple[int, ...] = ()  # ids of the prompt, until it is sent
        self._offset = 0  # characters of the prompt before the text
        self._extra: Json = {}
        self._begin(request.params)

    def on_event(self, event: ClientEvent) -> None:
        self._events.append(event)
        self.heard()

    @property
    def waits(self) -> bool:
        """Whether something has come that was not taken yet."""
        return bool(self._events)

    def named(self, error: SpecmeshError) -> SpecmeshError:
        """Return an error by the names that the client has: a verifier knows only of a schema, and
        not in which field it came."""
        field = self._schema_field
        if not isinstance(error, RequestError) or error.param != "json_schema" or not field:
            return error
        what = re.sub(r"json_schema( cannot be used)?", field, str(error), count=1)
        return RequestError(what, field.partition(".")[0])

    def events(self) -> list[ClientEvent]:
        events, self._events = self._events, []
        return events

    def add(self, event: Started | Scored | Tokens | Finished) -> None:
        if self._echoed:
            self._echo(event.logprobs if isinstance(event, Scored) else ())
        match event:
            case Scored():
                pass
            case Tokens():
                self._add_tokens(event)
            case Started():
                self._start(event)
            case Finished():
                self.end = event
                self._decode()
                self._show(self._filter.finish())
            case _:
                assert_never(event)

    def _begin(self, params: SessionParams) -> None:
        """Begin with the ids that came before; who asked by a name alone learns only now what the text may end with."""
        self._logprobs = params.logprobs is not None
        self._deltas = (
            deltas_of(params, splits=self._splits) if self.shape.chat else None
        )  # None too where all is text
        self._filter = StopTextFilter(self._vocabulary, params.stop)
        self._new: list[int] = []  # ids that are decoded together, for the next chunk
        self._kept: list[int] = []  # ids that may be in a stop string, or end within a character
        self._kept_logprobs: list[Logprob | None] = []
        before = self.request.generated
        shown = self._filter.feed(before)
        self._skipped = len(before) - len(shown.begins)
        if self._deltas is not None:
            self._deltas.skip(shown.text)

    def _start(self, event: Started) -> None:
        if event.params is not None and event.params != self.request.params:
            self._begin(event.params)
            self.merged = event.params.merged
        if self.request.params.echo:
            self._echoed = event.prompt_ids
            if not self._logprobs:
                self._echo()
        self._extra |= {"session": event.session, "prompt_tokens": event.prompt_tokens}
        if self.request.known:
            self._extra["known_tokens"] = self.request.known
        if self._resumable and event.params is not None:
            fields = {"max_tokens": event.params.max_tokens, **event.params.sampling.named()}
            self._extra |= {"prompt_token_ids": list(event.prompt_ids), "request": fields}

    def _echo(self, logprobs: tuple[Logprob | None, ...] = ()) -> None:
        """Tell the prompt, whose first id no logarithm is known of."""
        ids, self._echoed = self._echoed, ()
        whole = StopTextFilter(self._vocabulary, ())
        shown = whole.feed(ids)
        self._text += shown.text + whole.finish().text
        self._offset = len(self._text)
        if self._logprobs:
            known = (None, *logprobs, *(None,) * len(ids))
            places = zip(ids, shown.begins, known, strict=False)
            self._tokens += [
                AnswerToken(token, at, one, self._vocabulary) for token, at, one in places
            ]

    def _add_tokens(self, event: Tokens) -> None:
        ids, accepted = event.ids, event.accepted
        self._accepted += accepted
        if self._logprobs:
            self._kept_logprobs += event.logprobs or (None,) * len(ids)
        if not self.request.rounds:
            self._new += ids
            return
        self._decode()
        before = len(self._text)
        self._decode(ids[:accepted])
        self._extra["accepted_text"] = self._text[before:]
        self._decode(ids[accepted:])

    def _decode(self, ids: Sequence[int] = ()) -> None:
        new, self._new = [*self._new, *ids], []
        self._kept += new
        self._show(self._filter.feed(new))

    def _show(self, shown: ShownText) -> None:
        """Tell what of the text can be shown, and the ids that are whole in it."""
        self._text += shown.text
        begins = shown.begins
        if self._skipped:  # its client knows these ids, but not yet all of their text
            known = min(self._skipped, len(begins))
            self._skipped -= known
            begins = begins[known:]
        count = len(begins)
        ids, self._kept = self._kept[:count], self._kept[count:]
        self.generated += count
        self._ids += ids
        if self._logprobs:
            places = zip(ids, begins, self._kept_logprobs, strict=False)
            self._tokens += [
                AnswerToken(token, self._offset + at, one, self._vocabulary)
                for token, at, one in places
            ]
            del self._kept_logprobs[:count]

    def chunk(self) -> str:
        """Return what was added since the last chunk as a server-sent event; empty for nothing."""
        if self._new:
            self._decode()
        text, ids, tokens, extra, end = self._text, self._ids, self._tokens, self._extra, self.end
        if ids or "accepted_text" in extra:
            extra |= {"token_ids": ids, "accepted": self._accepted}
            self._accepted = 0
        if end is not None:
            extra |= self.result()
        if not (text or extra):
            return ""
        self._text, self._ids, self._tokens, self._extra = "", [], [], {}
        if self._deltas is not None:
            *deltas, last = self._deltas.feed(text, over=end is not None, cut=self._cut) or [{}]
            before = "".join(server_sent(self.shape.chunk(delta, None, {})) for delta in deltas)
            return before + server_sent(self.shape.chunk(last, self._reason(), extra, tokens))
        if text and not tokens and end is None:
            return f"data: {self._before}{written(text)}{self._between}{written(extra)}}}\n\n"
        return server_sent(self.shape.chunk(text, self._reason(), extra, tokens))

    @property
    def _cut(self) -> bool:
        """Return True where something else than the model ended the text."""
        return self.end is not None and self.end.reason != FinishReason.STOP

    def _reason(self) -> str | None:
        """Why the text has ended, if it has: a call of tools is a reason of its own."""
        called = self._deltas is not None and self._deltas.called
        reason = self.end.reason if self.end is not None else None
        return "tool_calls" if called and reason == FinishReason.STOP else reason

    def whole(self) -> Json:
        assert self.end is not None
        extra: Json = self.result() | {"token_ids": self._ids}
        said: str | Json = self._text
        if self._deltas is not None:
            self._deltas.feed(self._text, over=True, cut=self._cut)
            said = self._deltas.message
        return self.shape.whole(
            said, self._reason() or "", extra, self._tokens if self._logprobs else None
        )

    def result(self) -> Json:
        assert self.end is not None
        report, prompt_ids = self.end.report, list(self.end.prompt_ids)
        if "generated_tokens" in report:  # ids of a stop string are none of them
            report = {**report, "generated_tokens": self.generated}
        return {"schema_version": SCHEMA_VERSION, "prompt_token_ids": prompt_ids, "report": report}

    def counted(self, name: str) -> int:
        value = self.end.report.get(name) if self.end is not None else None
        return value if isinstance(value, int) else 0


def usage_of(choices: Sequence[Choice]) -> Json:
    """The usage of all; drafts count as OpenAI's predicted tokens, and a prompt once for all its answers."""
    firsts = [one for one in choices if not one.request.choice]
    prompt = sum(len(one.end.prompt_ids) for one in firsts if one.end is not None)
    generated, accepted = (
        sum(one.generated for one in choices),
        sum(one.counted("accepted") for one in choices),
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(one.counted("cached_tokens") for one in firsts)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(one.counted("drafted") for one in choices) - accepted,
        },
    }


def whole(choices: Sequence[Choice]) -> Json:
    first, *others = (one.whole() for one in choices)
    if others:
        answers = [first, *others]
        first["choices"] = [choice for one in answers for choice in list_at(one, "choices")]
        first["specmesh"] = {"choices": [one["specmesh"] for one in answers]}
    return first | {"usage": usage_of(choices)}
