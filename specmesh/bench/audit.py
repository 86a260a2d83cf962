"""`specmesh audit`: a verifier's texts without and with drafts, compared token by token.

Up to the position at which two texts diverge, the same ids precede each of their tokens. So their
log-probabilities differ only by the noise of kernels of different widths. A divergence is a near
tie if noise of that size can change the choice, and otherwise an error.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import itemgetter

from specmesh.bench.texts import generate, totals
from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json, at, list_at, number_at, objects_at

TOP_LOGPROBS = 10
"""Tokens of a row that are compared.

Less likely tokens move more, and can be chosen at a temperature.
"""

MIN_PLACES = 16
"""Positions at which a prompt's texts must agree to show their noise.

With fewer the noise of all prompts counts.
"""

MAX_NOISE = 0.5
"""Kernels change the log-probability of a token by less; a memory of wrong ids may not."""

TextPair = tuple[GeneratedText, GeneratedText]
"""A prompt's text without drafts, and one with drafts."""


def audit(
    client: Client,
    bodies: list[Json],
    ways: tuple[int | str, ...],
    snapshot: Json,
    advance: Callable[[], None],
) -> Json:
    """Return the result that --json prints. Raises the errors of the daemon.

    Each body's text is generated without drafts and with each draft_n of `ways`, one at a time;
    `advance` is called after each. A drafter's /stats do not show whether the verifier is
    reproducible.

    bodies: requests with a prompt, a seed and sampling options.
    snapshot: the daemon's /stats.
    """
    shown = {"logprobs": TOP_LOGPROBS, "cache_prompt": False}
    bodies = [body | shown for body in bodies]
    texts = defaultdict[int | str, list[GeneratedText]](list)
    for body in bodies:
        for way in (0, *ways):
            texts[way].append(generate(client, body | {"draft_n": way}))
            advance()
    plain = texts.pop(0)
    model = _model_of(snapshot)
    by_prompt = list[list[list[float]]]()
    largest = 0.0
    noise = 0.0
    for number, text in enumerate(plain):
        differences = list[list[float]]()
        for generated in texts.values():
            differences += _agreeing((text, generated[number]))
        by_prompt.append(differences)
        for row in differences:
            noise = max(noise, row[0])
            largest = max(largest, *row)
    if _is_reproducible(model):
        largest = 0.0
    divergences = list[Json]()
    counts = list[Json]()
    for way, generated in texts.items():
        errors = 0
        identical = 0
        for number, pair in enumerate(zip(plain, generated, strict=True)):
            if pair[0].ids == pair[1].ids:
                identical += 1
                continue
            margin = 2 * _noise(by_prompt[number], largest)
            divergence = _divergence(client, bodies[number], pair, margin)
            divergences.append({"prompt": number, "draft_n": way} | divergence)
            if divergence["verdict"] == "error":
                errors += 1
        near_ties = len(generated) - identical - errors
        verdicts = {"identical": identical, "near_ties": near_ties, "errors": errors}
        counts.append({"draft_n": way} | totals(generated) | verdicts)
    result: Json = {"prompts": len(bodies), "model": model}
    result |= {"noise": noise, "ways": counts, "divergences": divergences}
    return judged(result)


def judged(result: Json) -> Json:
    """Return the result of an audit with its verdict.

    - A verifier that promises the same bits may have no noise.
    - undrafted: the ways without any drafts. Adaptive draft_n may have none, if another way has
      some.
    """
    limit = 0.0 if _is_reproducible(result["model"]) else MAX_NOISE
    too_noisy = number_at(result, "noise") > limit
    ways = objects_at(result, "ways")
    undrafted = list[object]()
    for way in ways:
        if not way["drafted"]:
            undrafted.append(way["draft_n"])
    if len(undrafted) < len(ways) and "auto" in undrafted:
        undrafted.remove("auto")
    verdicts = map(itemgetter("verdict"), objects_at(result, "divergences"))
    failed = too_noisy or bool(undrafted) or "error" in verdicts
    return result | {"too_noisy": too_noisy, "failed": failed, "undrafted": undrafted}


def _model_of(snapshot: Json) -> object:
    """Return the target in /stats; a drafter has only its name and its hash."""
    if snapshot.get("role") == "drafter":
        verifier = objects_at(snapshot, "verifiers")[0]
        return {"name": verifier["model"], "model_hash": verifier.get("model_hash")}
    return snapshot["model"]


def _is_reproducible(model: object) -> bool:
    return bool(at(model, "reproducible"))


def _noise(differences: list[list[float]], largest: float) -> float:
    """Return the largest difference of the likeliest tokens in the texts of one prompt.

    `largest`, that of all prompts, would excuse errors of quiet texts. So it counts only if these
    texts agree at fewer than MIN_PLACES positions: the next of n differences exceeds all of them
    with probability 1/(n + 1).
    """
    if len(differences) < MIN_PLACES:
        return largest
    return min(max(map(max, differences)), largest)


def _agreeing(pair: TextPair) -> Iterator[list[float]]:
    """Yield the differences of log-probabilities at each position up to the divergence.

    The first is that of the text's own token.
    """
    first, second = pair
    for entry, other_entry in zip(first.logprobs, second.logprobs, strict=False):
        if entry["id"] != other_entry["id"]:
            return
        row = _likeliest(entry)
        other_row = _likeliest(other_entry)
        differences = list[float]()
        for token in row:
            if token in other_row:
                differences.append(abs(row[token] - other_row[token]))
        yield differences


def _likeliest(entry: Json) -> dict[int, float]:
    """Return the log-probabilities by id: the token's own, then those of the likeliest."""
    row = dict[int, float]()
    for token in (entry, *objects_at(entry, "top_logprobs")):
        row[int(number_at(token, "id"))] = number_at(token, "logprob")
    return row


def _divergence(client: Client, body: Json, pair: TextPair, margin: float) -> Json:
    """Return the divergence of two texts, with its verdict.

    The target generates the token again without drafts: in a near tie a bias of `margin` turns it
    to that of the text with drafts.
    """
    plain, drafted = pair
    position = len(list(_agreeing(pair)))
    token = _token_at(plain, position)
    drafted_token = _token_at(drafted, position)
    prompt = [*plain.prompt_ids, *plain.ids[:position]]
    body = body | {"prompt": prompt, "max_tokens": 1, "draft_n": 0}
    expected = drafted.ids[position : position + 1]
    verdict = "error"
    # A bias against the first token, too: it may have been the last one that a filter let in.
    for biased, bias in ((token, -margin), (drafted_token, margin)):
        if biased is None or margin <= 0 or verdict == "near tie":
            continue
        biases = [*list_at(body, "logit_bias"), (biased, bias)]
        if generate(client, body | {"logit_bias": biases}).ids == expected:
            verdict = "near tie"
    return {
        "position": position,
        "alone": token,
        "drafted": drafted_token,
        "near_tie_up_to": margin,
        "verdict": verdict,
    }


def _token_at(text: GeneratedText, position: int) -> int | None:
    return text.ids[position] if position < len(text.ids) else None


def lines(result: Json) -> list[str]:
    """Return the lines that are printed for a result."""
    found = list[str]()
    if result["too_noisy"]:
        size = f"differ by {result['noise']:.2g}, more than kernels explain"
        found.append(f"ERROR: log-probabilities of the same tokens {size}")
    for way in list_at(result, "undrafted"):
        found.append(f"ERROR: nothing was drafted with draft_n {way}: try more --max-tokens")
    found += map(_line, objects_at(result, "divergences"))
    return found


def _line(divergence: Json) -> str:
    tokens = f"{_shown(divergence['alone'])} and {_shown(divergence['drafted'])}"
    prompt = f"prompt {divergence['prompt']}, draft_n {divergence['draft_n']}"
    place = f"{prompt}, token {divergence['position']}"
    margin = f"near tie up to a margin of {divergence['near_tie_up_to']:.2g}"
    return f"{divergence['verdict']}: {place}: {tokens}; {margin}"


def _shown(token: object) -> str:
    return "the end" if token is None else str(token)
