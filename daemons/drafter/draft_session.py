"""A session as a drafter follows it, and what its own client, if it has one, hears of it."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from specmesh.api.requests import EventSink, Failed, Finished, Request, Started, Tokens
from specmesh.core.draft_session import DrafterSession
from specmesh.core.events import Learned, Predict
from specmesh.core.report import with_drafting
from specmesh.core.sampling import Strategy
from specmesh.core.sampling.acceptance_strategies import uses_proposals
from specmesh.core.sampling.constraint import DraftConstraint, Grammar
from specmesh.core.sampling.proposal import ProposalSampler
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.session_params import SessionParams
from specmesh.daemons.drafter.event_buffer import EventBuffer
from specmesh.daemons.link.frames import fields_of, grammar_of, params_of
from specmesh.errors import SpecmeshError
from specmesh.wire.messages import DRAFT_N_AUTO, NO_LOGPROBS, Done, Logprobs, Open, Opened, Round, Welcome


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request of a local client.

    started: its client knows that it began. until: when to give it up, where its verifier has gone away.
    home: the address of the verifier that had it, empty for none; began: what that one said of itself, where the text
    has begun. tried: the addresses where it was refused since; error: why.
    """

    request: Request
    client: EventSink
    started: bool = False
    until: float | None = None
    home: str = ""
    began: Welcome | None = None
    tried: tuple[str, ...] = ()
    error: SpecmeshError | None = None

    def order(self, ref: int) -> Open:
        """What asks the verifier for it."""
        request, params = self.request, self.request.params
        prompt = request.prompt_ids or ()
        return Open(
            ref,
            request.prompt or "",
            params.max_tokens,
            draft_n=DRAFT_N_AUTO if params.draft_n is None else params.draft_n,
            rounds=request.rounds,
            ids=[*prompt, *request.generated],
            messages=[message.fields() for message in request.messages],
            stop=list(params.stop),
            name=request.id,
            n_prompt=len(prompt),
            adopt=request.named_only,
            priority=request.priority,
            logprobs=NO_LOGPROBS if params.logprobs is None else params.logprobs,
            **fields_of(params.sampling, params.grammar),
            cache_prompt=params.cache_prompt,
            continued=request.continued,
        )

    @property
    def resumes(self) -> bool:
        return self.started or bool(self.request.generated) or self.request.named_only

    def lacking(self, opened: Opened) -> str | None:
        """What was asked for that a session is not, its verifier being older than this drafter."""
        request = self.request
        if request.generated and len(request.prompt_ids or ()) != opened.prompt_tokens:
            return "cannot go on with a text"  # it has all of it as a prompt
        if request.params.logprobs is not None and opened.logprobs == NO_LOGPROBS and not request.named_only:
            return "tells no log-probabilities of this text"
        return self._ignored(opened) if not request.named_only else None

    def _ignored(self, opened: Opened) -> str | None:
        """What of the request changes the text, and was read over."""
        params = self.request.params
        if params.grammar is not None and grammar_of(opened) is None:
            return f"knows no {params.grammar.field}"
        strategy = str(params.sampling.strategy)
        return f"knows no strategy {strategy}" if strategy not in (opened.strategy, Strategy.GREEDY) else None

    def given(self, opened: Opened) -> "PendingRequest":
        """The same once the verifier has told how the text goes on: who asked by a name did not know."""
        params = self.request.params
        if self.request.named_only:
            logprobs = None if opened.logprobs == NO_LOGPROBS else opened.logprobs
            most, stop = max(opened.max_tokens, 1), tuple(opened.stop)
            params = SessionParams(
                params_of(opened),
                most,
                stop=stop,
                logprobs=logprobs,
                grammar=grammar_of(opened),
                cache_prompt=opened.cache_prompt,
            )
        request = replace(self.request, params=params, named_only=False)
        return replace(self, request=request, until=None, tried=(), error=None)


@dataclass(slots=True)
class DraftSession:
    """A session this drafter follows. seq is None until its prompt is here, and where the draft model has no room: then
    nothing is drafted for it.

    guided: where its drafts go by its grammar, once that is compiled. ref: as in the OPEN that asked for it, or 0.
    broken: what its verifier said of an error that ends it. undraftable: drafting for it has failed, and would again.
    The truth it learns is the prompt first, then rounds, told once all is here that its client asked for about them.
    """

    id: int
    machine: DrafterSession
    sampler: Sampler
    seq: int | None
    n_prompt: int
    end_ids: Collection[int]
    asked: PendingRequest | None
    bytes_sent: int = 0
    bytes_received: int = 0
    grammar: Grammar | None = None
    guided: DraftConstraint | None = None
    ref: int = 0
    broken: SpecmeshError | None = None
    undraftable: bool = False
    cache_prompt: bool = True
    _prompt_ids: list[int] = field(default_factory=list)
    _heard: int = 0
    _withheld: EventBuffer = field(init=False)

    def __post_init__(self) -> None:
        request = self.asked.request if self.asked is not None else None
        self._withheld = EventBuffer(
            rounds=request is not None and request.rounds,
            logprobs=request is not None and request.params.logprobs is not None,
        )

    def sampler_for(self, plan: Predict) -> Sampler | None:
        """What chooses the guess of a plan, if it has one."""
        if not plan.guess:
            return None
        back = self.sampler.looks_back
        sampler = self.sampler.after(self.machine.before(plan, back)) if back else self.sampler
        if self.guided is not None:
            length = self.machine.end(plan) - self.n_prompt
            return self.guided.sampler(sampler, length, lambda count: self.machine.before(plan, count))
        return ProposalSampler(sampler, self.machine.crc_after(plan)) if uses_proposals(sampler.params) else sampler

    def learned(self, news: Learned) -> int:
        """Take truth in; how many of its ids were generated, and are new to its client."""
        missing = self.n_prompt - len(self._prompt_ids)
        if missing:
            self._prompt_ids += news.ids[:missing]
            if len(self._prompt_ids) == self.n_prompt:
                self._started()
        known = self.asked.request.known if self.asked is not None else 0
        skipped = max(known - self._heard, 0)
        ids, base = news.ids[missing + skipped :], self.n_prompt + self._heard + skipped
        self._heard += max(len(news.ids) - missing, 0)
        if ids:
            self._withheld.add(base, ids, news.accepted, sync=news.sync)
            self._tell()
        return len(ids)

    def round(self, message: Round) -> None:
        self._withheld.round(tuple(message.drafts), message.accepted)
        self._tell()

    def logprobs(self, message: Logprobs) -> None:
        self._withheld.logprobs(message)
        self._tell()

    def done(self, message: Done) -> None:
        """The verifier has ended it: its report, with this drafter's own time and bytes."""
        if self.asked is None:
            return
        self._withheld.give_up()
        self._tell()
        report = with_drafting(message.report, self.machine.drafted, self.machine.draft_seconds)
        report |= {"bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received}
        self.asked.client.on_event(Finished(message.finish_reason, tuple(self._prompt_ids), report))

    def cancelled(self) -> None:
        if self.asked is not None:
            self.asked.client.on_event(Finished("cancelled", tuple(self._prompt_ids), {}))

    def failed(self, error: SpecmeshError) -> None:
        if self.asked is not None:
            self.asked.client.on_event(Failed(error))
            self.asked = None

    def interrupted(self) -> PendingRequest | None:
        """What its client asked for, so that it can be asked for again after all that has been heard; None without
        one. Nothing more is told here."""
        if self.asked is None:
            return None
        self._withheld.give_up_rounds()
        self._tell()
        asked, self.asked = self.asked, None
        request, truth = asked.request, self.machine.truth
        if len(truth) < self.n_prompt:
            return asked
        said = truth[self.n_prompt : self._withheld.first]  # what lacks its log-probabilities is to be said again
        generated = said if len(said) > len(request.generated) else request.generated
        known = max(request.known, len(said))
        prompt = truth[: self.n_prompt]
        return replace(asked, request=replace(request, prompt_ids=prompt, generated=generated, known=known))

    def _started(self) -> None:
        if self.asked is None or self.asked.started:
            return
        self.asked = replace(self.asked, started=True)
        request = self.asked.request
        self.asked.client.on_event(Started(self.id, self.n_prompt, tuple(self._prompt_ids), request.params))

    def _tell(self) -> None:
        """Tell what waits for nothing more."""
        for tokens in self._withheld.ready():
            if self.asked is not None:
                ids = tokens.ids  # only the last round can have an end id
                shown = ids[:-1] if ids[-1] in self.end_ids else ids
                accepted = min(tokens.accepted, len(shown))
                self.asked.client.on_event(Tokens(shown, accepted, tokens.drafts, tokens.logprobs[: len(shown)]))
