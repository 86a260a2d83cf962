"""Asks a live pair for each text alone and with drafts, and for what is needed to judge where they part."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from specmesh.audit.compare import BOTH, LIKELIEST, Parting, Text, Verdict, margin, noise, noise_of, parting, verdict
from specmesh.client import Client, Json
from specmesh.errors import EngineError


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: each prompt alone and with each of `ways`, which are values of draft_n, `tokens` tokens each.

    sampling: fields of the requests' bodies. Without a seed among them each prompt has its own, its number.
    """

    prompts: tuple[str, ...]
    tokens: int
    ways: tuple[int | str, ...]
    sampling: Json

    @property
    def texts(self) -> int:
        """Texts it takes."""
        return len(self.prompts) * (1 + len(self.ways))

    def body(self, number: int) -> Json:
        """The request of a prompt, but for how it is drafted."""
        asked = {
            "prompt": self.prompts[number],
            "max_tokens": self.tokens,
            "logprobs": LIKELIEST,
            "cache_prompt": False,
        }
        return {"seed": number} | self.sampling | asked


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two texts that part, by the number of their prompt and draft_n.

    margin: None where it is beyond measure. noise: what it was held against.
    """

    prompt: int
    way: int | str
    parting: Parting
    margin: float | None
    noise: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it. alone and drafted: texts by prompt, and by way and prompt. noise: the largest on them."""

    plan: Plan
    alone: tuple[Text, ...]
    drafted: dict[int | str, tuple[Text, ...]]
    noise: float
    divergences: tuple[Divergence, ...]


def audit(client: Client, plan: Plan, advance: Callable[[], None], *, reproducible: bool = False) -> Found:
    """Run `plan`, one text at a time, calling `advance` after each. Raises what the daemon raises.

    reproducible: the verifier promises the same bits, so that no divergence is a near tie.
    """
    alone: list[Text] = []
    drafted: dict[int | str, list[Text]] = {way: [] for way in plan.ways}
    for number in range(len(plan.prompts)):
        body = plan.body(number)
        alone.append(_text(client, body | {"draft_n": 0}))
        advance()
        for way, texts in drafted.items():
            texts.append(_text(client, body | {"draft_n": way}))
            advance()
    pairs = [[(alone[number], texts[number]) for texts in drafted.values()] for number in range(len(alone))]
    every = [pair for own in pairs for pair in own]
    largest = noise_of(every, 0.0)
    noises = [0.0 if reproducible else noise_of(own, largest) for own in pairs]
    divergences = [
        _judged(client, plan, alone[number], Parted(number, way, where), noises[number])
        for way, texts in drafted.items()
        for number, text in enumerate(texts)
        if (where := parting(alone[number], text)) is not None
    ]
    return Found(
        plan, tuple(alone), {way: tuple(texts) for way, texts in drafted.items()}, noise(every), tuple(divergences)
    )


@dataclass(frozen=True, slots=True)
class Parted:
    """A divergence before it is judged."""

    prompt: int
    way: int | str
    parting: Parting


def _judged(client: Client, plan: Plan, alone: Text, parted: Parted, measured: float) -> Divergence:
    """How much the target alone, asked again where two texts part, must be pushed to say what it said with drafts."""
    where = parted.parting
    body = plan.body(parted.prompt)
    body |= {"prompt": [*alone.prompt_ids, *alone.ids[: where.position]], "max_tokens": 1, "draft_n": 0}
    biases = list(cast("list[tuple[int, float]]", body.get("logit_bias", [])))

    def flips(push: float) -> bool:
        """Towards its token with drafts, or away from the other, which may have been the last that a filter let in."""
        pushes = ((where.drafted, push), (where.alone, -push))
        return any(said_with(token, push) == wanted for token, push in pushes if token is not None)

    def said_with(token: int, push: float) -> tuple[int, ...]:
        return _text(client, body | {"logit_bias": [*biases, (token, push)]}).ids

    wanted = () if where.drafted is None else (where.drafted,)

    found = margin(flips, BOTH * measured)
    return Divergence(parted.prompt, parted.way, where, found, measured, verdict(found, measured))


def _text(client: Client, body: Json) -> Text:
    ids, entries = list[int](), list[Json]()
    last: Json = {}
    with closing(client.complete(body)) as chunks:
        for chunk in chunks:
            last = cast("Json", chunk["specmesh"])
            ids += cast("list[int]", last.get("token_ids", []))
            entries += cast("list[Json]", last.get("logprobs", []))
    report = last.get("report")
    if not isinstance(report, dict) or len(entries) != len(ids):
        raise EngineError("the daemon ended a text without its report or its log-probabilities: see its log")
    return Text(
        tuple(cast("list[int]", last["prompt_token_ids"])),
        tuple(ids),
        tuple(cast("float", entry["logprob"]) for entry in entries),
        tuple(_likeliest(entry) for entry in entries),
        int(report["drafted"]),
        int(report["accepted"]),
    )


def _likeliest(entry: Json) -> dict[int, float]:
    """Log-probabilities by id, the token's own among them."""
    told = cast("list[Json]", [*cast("list[Json]", entry["top_logprobs"]), entry])
    return {cast("int", one["id"]): cast("float", one["logprob"]) for one in told}
