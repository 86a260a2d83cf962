"""How fast texts come with a drafter, against the verifier alone in the same minute."""

from statistics import median

from processes import Daemon, body, complete, sim_ids


def worth(verifier: Daemon, prompt: str, tokens: int = 400, turns: int = 5) -> float:
    """The median, over some turns, of tokens per second with drafts over those without; every text must be right."""
    truth = sim_ids(prompt, tokens)

    def speed(draft_n: object) -> float:
        stream = complete(verifier, body(prompt, tokens, draft_n=draft_n))
        assert stream.ids == truth
        return float(stream.result["report"]["tokens_per_second"])  # type: ignore[index]

    speed("auto")  # what is learned of the drafter at first is not what it costs
    return median(speed("auto") / speed(0) for _ in range(turns))
