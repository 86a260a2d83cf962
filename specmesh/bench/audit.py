"""`specmesh audit`: the verifier's texts alone and with drafts, compared token by token.

Before two texts part, the same ids precede each of their tokens, so their log-probabilities differ only by what kernels
of another width do. A divergence is a near tie where differences of that size can turn the choice, else an error.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from specmesh.bench import collect
from specmesh.client import Client, Fields, Json
from specmesh.errors import EngineError

TOP_LOGPROBS = 10
"""Tokens of a row that are compared: less likely ones move more, and a temperature lets them be chosen."""
MIN_PLACES = 16
"""Places at which a prompt's texts must agree to tell how noisy they are; below, the noise of all prompts counts."""
MAX_NOISE = 0.5
"""Kernels change the log-probability of a token by less than this; a memory that holds wrong ids may not."""


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What to run: each prompt alone and with each draft_n of `ways`. sampling: fields of the requests' bodies."""

    prompts: tuple[str, ...]
    tokens: int
    ways: tuple[int | str, ...]
    sampling: Json

    @property
    def texts(self) -> int:
        return len(self.prompts) * (1 + len(self.ways))

    def body(self, number: int) -> Json:
        """Return the request for a prompt, without its draft_n. The seed is the prompt's number if none is given."""
        asked = {"prompt": self.prompts[number], "max_tokens": self.tokens, "logprobs": TOP_LOGPROBS}
        return {"seed": number} | self.sampling | asked | {"cache_prompt": False}


class AuditText(NamedTuple):
    """A generated text. likeliest: for each id, log-probabilities by id, its own among them."""

    prompt_ids: list[int]
    ids: list[int]
    likeliest: list[dict[int, float]]
    drafted: int = 0
    accepted: int = 0


def judged(told: dict[str, Any]) -> dict[str, Any]:
    """Add to what an audit has found whether it failed. A verifier that promises the same bits may have no noise.

    undrafted: the ways in which nothing was drafted; adaptive draft_n may do so, unless nobody drafted at all.
    """
    too_noisy = told["noise"] > (0.0 if _reproducible(told["model"]) else MAX_NOISE)
    none = [way["draft_n"] for way in told["ways"] if not way["drafted"]]
    undrafted = [way for way in none if way != "auto" or len(none) == len(told["ways"])]
    failed = bool(undrafted or too_noisy or any(one["verdict"] == "error" for one in told["divergences"]))
    return told | {"too_noisy": too_noisy, "failed": failed, "undrafted": undrafted}


def _reproducible(model: Json | None) -> bool:
    return bool(model and model.get("reproducible"))


def lines(told: dict[str, Any]) -> list[str]:
    """Return what an audit has found as text."""
    table = [[name.replace("_", " ") for name in told["ways"][0]], *(way.values() for way in told["ways"])]
    model, reproducible = Fields(told["model"] or {}), _reproducible(told["model"])
    name = model.text("model") or model.text("name") or "unknown model"
    where = f"{model.text('backend') or model.text('name')}{', reproducible' if reproducible else ''}"
    noisy = f"kernels do not differ by more than {MAX_NOISE:g}"
    if reproducible:
        noisy = "the verifier is reproducible, and yet its log-probabilities differ"
    return [
        f"{name} on {where}: {told['prompts']} prompts, at most {told['max_tokens']} tokens",
        "",
        *("  ".join(f"{cell:>9}" for cell in row) for row in table),
        "",
        f"noise {told['noise']:.2g}: log-probabilities of the same tokens differ so much, at most",
        f"near ties are within twice what the {TOP_LOGPROBS} likeliest differ by in the texts of one prompt",
        *([f"ERROR: {noisy}"] if told["too_noisy"] else []),
        *(f"ERROR: nothing was drafted with draft_n {way}: try more --tokens" for way in told["undrafted"]),
        *map(_line, told["divergences"]),
    ]


def _line(one: dict[str, Any]) -> str:
    said = " and ".join("the end" if token is None else str(token) for token in (one["alone"], one["drafted"]))
    where = f"prompt {one['prompt']}, draft_n {one['draft_n']}, token {one['position']}"
    return f"{one['verdict']}: {where}: {said}; near tie up to a margin of {one['near_tie_up_to']:.2g}"


def audit(client: Client, plan: AuditPlan, snapshot: Json, advance: Callable[[], None]) -> dict[str, Any]:
    """Run `plan`, one text at a time, calling `advance` after each; return what --json prints. Raise what the daemon
    does. snapshot: its /stats. noise: the largest difference between log-probabilities of a token after the same ids.

    Asked at a drafter, it knows of the verifier's model only what that has said, and not whether it is reproducible.
    """
    texts: dict[int | str, list[AuditText]] = {way: [] for way in (0, *plan.ways)}
    for number in range(len(plan.prompts)):
        for way, made in texts.items():
            made.append(_generate(client, plan.body(number) | {"draft_n": way}))
            advance()
    alone = texts.pop(0)
    pairs = [[(one, made[number]) for made in texts.values()] for number, one in enumerate(alone)]
    rows = [list(_agreeing(own)) for own in pairs]
    every = [differences for own in rows for differences in own]
    model = snapshot.get("verifier" if snapshot.get("role") == "drafter" else "model")
    known = model if isinstance(model, dict) else None
    largest = max((max(differences.values()) for differences in every), default=0.0)
    noises = [0.0 if _reproducible(known) else _noise(own, largest) for own in rows]
    divergences, ways = list[dict[str, Any]](), list[dict[str, int | str]]()
    for way, made in texts.items():
        found = [
            _divergence(client, plan, number, way, (alone[number], text), noises[number])
            for number, text in enumerate(made)
            if text.ids != alone[number].ids
        ]
        divergences += found
        errors = sum(one["verdict"] == "error" for one in found)
        ways.append(
            {
                "draft_n": way,
                "texts": len(made),
                "tokens": sum(len(text.ids) for text in made),
                "drafted": sum(text.drafted for text in made),
                "accepted": sum(text.accepted for text in made),
                "identical": len(made) - len(found),
                "near_ties": len(found) - errors,
                "errors": errors,
            }
        )
    noise = max((next(iter(differences.values())) for differences in every), default=0.0)
    told = {"schema_version": 1, "prompts": len(plan.prompts), "max_tokens": plan.tokens, "sampling": plan.sampling}
    return judged(told | {"model": known, "noise": noise, "ways": ways, "divergences": divergences})


def _noise(rows: list[dict[int, float]], largest: float) -> float:
    """Return the largest difference between log-probabilities of the likeliest tokens in the texts of one prompt.

    The largest of all prompts would excuse errors of quiet ones. `largest`, which that is, counts only where these
    texts agree at fewer than MIN_PLACES places: one more of n such differences exceeds them with probability 1/(n + 1).
    """
    found = [max(differences.values()) for differences in rows]
    return max(found if len(found) >= MIN_PLACES else [*found, largest])


def _agreeing(pairs: Iterable[tuple[AuditText, AuditText]]) -> Iterator[dict[int, float]]:
    """For each token up to where its pair parts: by how much both rows' log-probabilities differ, its own first."""
    for one, other in pairs:
        for token, theirs, row, their_row in zip(one.ids, other.ids, one.likeliest, other.likeliest, strict=False):
            if token != theirs:
                break
            yield {found: abs(row[found] - their_row[found]) for found in row if found in their_row}


def _divergence(
    client: Client, plan: AuditPlan, number: int, way: int | str, pair: tuple[AuditText, AuditText], noise: float
) -> dict[str, Any]:
    """Ask the target alone where two texts part: does a bias of twice the noise turn it to what it said with drafts?"""
    alone, drafted = pair
    at = len(list(_agreeing([pair])))
    tokens = [text.ids[at] if at < len(text.ids) else None for text in pair]
    body = plan.body(number) | {"prompt": [*alone.prompt_ids, *alone.ids[:at]], "max_tokens": 1, "draft_n": 0}
    given: Any = body.get("logit_bias", [])
    # Away from its token alone too: that may have been the last one that a filter let in.
    biases = [(token, bias) for token, bias in zip(tokens, (-2 * noise, 2 * noise), strict=True) if token is not None]
    asked = (body | {"logit_bias": [*given, bias]} for bias in biases)
    tie = noise > 0 and any(_generate(client, one).ids == drafted.ids[at : at + 1] for one in asked)
    told = {"prompt": number, "draft_n": way, "position": at, "alone": tokens[0], "drafted": tokens[1]}
    return told | {"near_tie_up_to": 2 * noise, "verdict": "near tie" if tie else "error"}


def _generate(client: Client, body: Json) -> AuditText:
    ids, _, last, entries = collect(client, body)
    if len(entries) != len(ids):
        raise EngineError("the daemon ended a text without its log-probabilities: see its log")
    likeliest = [{one["id"]: one["logprob"] for one in (entry, *entry["top_logprobs"])} for entry in entries]
    report = last["report"]
    return AuditText(last["prompt_token_ids"], ids, likeliest, int(report["drafted"]), int(report["accepted"]))
