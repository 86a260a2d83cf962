"""`specmesh audit`: the verifier's texts alone and with drafts, compared token by token.

Before two texts part, the same ids precede each of their tokens, so their log-probabilities differ only by what kernels
of another width do. A divergence is a near tie where differences of that size can turn the choice, else an error.
"""

from collections.abc import Callable, Iterator

from specmesh.bench import generate, totals
from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json, at, list_at, number_at, objects_at

TOP_LOGPROBS = 10
"""Tokens of a row that are compared: less likely ones move more, and a temperature lets them be chosen."""
MIN_PLACES = 16
"""Places at which a prompt's texts must agree to tell how noisy they are; below, the noise of all prompts counts."""
MAX_NOISE = 0.5
"""Kernels change the log-probability of a token by less than this; a memory that holds wrong ids may not."""

TextPair = tuple[GeneratedText, GeneratedText]  # a prompt's text alone, and one with drafts


def audit(
    client: Client,
    bodies: list[Json],
    ways: tuple[int | str, ...],
    snapshot: Json,
    advance: Callable[[], None],
) -> Json:
    """Ask for each body's text, one at a time, alone and with each draft_n of `ways`, calling `advance` after each;
    return what --json prints. Raise what the daemon does. bodies: requests that have a prompt, a seed and sampling
    options. snapshot: the daemon's /stats. noise: the largest difference between log-probabilities of a token after the
    same ids. Asked at a drafter, it knows of the verifier's model only what that has said, and not whether it is
    reproducible."""
    bodies = [body | {"logprobs": TOP_LOGPROBS, "cache_prompt": False} for body in bodies]
    texts: dict[int | str, list[GeneratedText]] = {way: [] for way in (0, *ways)}
    for body in bodies:
        for way, made in texts.items():
            made.append(generate(client, body | {"draft_n": way}))
            advance()
    alone = texts.pop(0)
    differences = [
        [row for made in texts.values() for row in _agreeing((one, made[n]))]
        for n, one in enumerate(alone)
    ]
    every = [row for rows in differences for row in rows]
    at_drafter = snapshot.get("role") == "drafter"
    model: object = (
        {"name": objects_at(snapshot, "verifiers")[0]["model"]} if at_drafter else snapshot["model"]
    )
    largest = 0.0 if _reproducible(model) else max((max(row) for row in every), default=0.0)
    divergences, counts = list[Json](), list[Json]()
    for way, made in texts.items():
        found = [
            {"prompt": number, "draft_n": way}
            | _divergence(
                client, bodies[number], (alone[number], text), _noise(differences[number], largest)
            )
            for number, text in enumerate(made)
            if text.ids != alone[number].ids
        ]
        divergences += found
        errors = sum(one["verdict"] == "error" for one in found)
        verdicts = {
            "identical": len(made) - len(found),
            "near_ties": len(found) - errors,
            "errors": errors,
        }
        counts.append({"draft_n": way} | totals(made) | verdicts)
    result = {"schema_version": 1, "prompts": len(bodies), "model": model}
    noise = max((row[0] for row in every), default=0.0)
    return judged(result | {"noise": noise, "ways": counts, "divergences": divergences})


def judged(result: Json) -> Json:
    """Add to what an audit has found whether it failed. A verifier that promises the same bits may have no noise.
    undrafted: the ways in which nothing was drafted; adaptive draft_n may do so, unless nobody drafted at all."""
    ways = objects_at(result, "ways")
    too_noisy = number_at(result, "noise") > (0.0 if _reproducible(result["model"]) else MAX_NOISE)
    none = [way["draft_n"] for way in ways if not way["drafted"]]
    undrafted = [way for way in none if way != "auto" or len(none) == len(ways)]
    failed = bool(
        undrafted
        or too_noisy
        or any(one["verdict"] == "error" for one in objects_at(result, "divergences"))
    )
    return result | {"too_noisy": too_noisy, "failed": failed, "undrafted": undrafted}


def _reproducible(model: object) -> bool:
    return bool(at(model, "reproducible"))


def _noise(differences: list[list[float]], largest: float) -> float:
    """Return the largest difference between log-probabilities of the likeliest tokens in the texts of one prompt.
    `largest`, that of all prompts, would excuse errors of quiet ones. So it counts only where these texts agree at
    fewer than MIN_PLACES places: one more of n such differences exceeds them with probability 1/(n + 1)."""
    return min(max(map(max, differences)), largest) if len(differences) >= MIN_PLACES else largest


def _agreeing(pair: TextPair) -> Iterator[list[float]]:
    """For each token up to where a pair parts: by how much both rows' log-probabilities differ, its own first."""
    one, other = pair
    for token, theirs, entry, their_entry in zip(
        one.ids, other.ids, one.logprobs, other.logprobs, strict=False
    ):
        if token != theirs:
            return
        row, their_row = _likeliest(entry), _likeliest(their_entry)
        yield [abs(row[found] - their_row[found]) for found in row if found in their_row]


def _likeliest(entry: Json) -> dict[int, float]:
    """Return a token's log-probability, and then those of the likeliest in its place, by id."""
    entries = (entry, *objects_at(entry, "top_logprobs"))
    return {int(number_at(one, "id")): number_at(one, "logprob") for one in entries}


def _divergence(client: Client, body: Json, pair: TextPair, noise: float) -> Json:
    """Ask the target alone where two texts part: does a bias of twice the noise turn it to what it said with drafts?"""
    alone, drafted = pair
    at = len(list(_agreeing(pair)))
    tokens = [text.ids[at] if at < len(text.ids) else None for text in pair]
    body = body | {"prompt": [*alone.prompt_ids, *alone.ids[:at]], "max_tokens": 1, "draft_n": 0}
    # Away from its token alone too: that may have been the last one that a filter let in.
    biases = [
        (token, bias)
        for token, bias in zip(tokens, (-2 * noise, 2 * noise), strict=True)
        if token is not None
    ]
    biased = (body | {"logit_bias": [*list_at(body, "logit_bias"), bias]} for bias in biases)
    tie = noise > 0 and any(generate(client, one).ids == drafted.ids[at : at + 1] for one in biased)
    verdict = "near tie" if tie else "error"
    return {
        "position": at,
        "alone": tokens[0],
        "drafted": tokens[1],
        "near_tie_up_to": 2 * noise,
        "verdict": verdict,
    }


def lines(result: Json) -> list[str]:
    noise = [
        f"ERROR: log-probabilities of the same tokens differ by {result['noise']:.2g}, more than kernels explain"
    ]
    ways = list_at(result, "undrafted")
    undrafted = [
        f"ERROR: nothing was drafted with draft_n {way}: try more --max-tokens" for way in ways
    ]
    return [
        *(noise if result["too_noisy"] else []),
        *undrafted,
        *map(_line, objects_at(result, "divergences")),
    ]


def _line(one: Json) -> str:
    said = " and ".join(
        "the end" if token is None else str(token) for token in (one["alone"], one["drafted"])
    )
    where = f"prompt {one['prompt']}, draft_n {one['draft_n']}, token {one['position']}"
    return (
        f"{one['verdict']}: {where}: {said}; near tie up to a margin of {one['near_tie_up_to']:.2g}"
    )
