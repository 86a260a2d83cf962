"""The simulated engines: repeatable, as often right and as slow as they are told to be."""

import numpy as np
import pytest
from harness.clock import Clock, virtual_time

from specmesh.core.events import Span
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines import sim
from specmesh.engines.sim import SimDrafter, SimSettings, SimVerifier
from specmesh.errors import ConfigError

GREEDY = Sampler(SamplingParams())
PROMPT = b"Once upon a time"


def continuation(settings: SimSettings, length: int, prompt: bytes = PROMPT) -> list[int]:
    engine = SimVerifier(settings)
    ids = list(prompt)
    tokens: list[int] = []
    for _ in range(length):
        (rows,) = engine.decode(
            [Span(0, len(tokens) + (len(prompt) if tokens else 0) - bool(tokens), tuple(ids), True)]
        )
        assert rows is not None
        tokens.append(int(rows[-1].argmax()))
        ids = tokens[-1:]
    return tokens


def agreement(settings: SimSettings, length: int = 600) -> float:
    """How often the drafter guesses the verifier's token along the verifier's text."""
    truth = [*PROMPT, *continuation(SimSettings(), length)]
    drafter = SimDrafter(settings)
    drafter.predict(0, truth[: len(PROMPT) - 1], None)
    guesses = [drafter.predict(0, [token], GREEDY) for token in truth[len(PROMPT) - 1 : -1]]
    return float(np.mean([guess == token for guess, token in zip(guesses, truth[len(PROMPT) :], strict=True)]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return virtual_time(monkeypatch, sim)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.75, 1.0])
def test_alpha(alpha: float) -> None:
    """The drafter is right as often as alpha says (600 guesses: within 4 standard errors), and repeats."""
    measured = agreement(SimSettings(alpha=alpha))
    assert measured == pytest.approx(alpha, abs=4 * (alpha * (1 - alpha) / 600) ** 0.5)
    assert agreement(SimSettings(alpha=alpha)) == measured


def test_time_of_a_step(clock: Clock) -> None:
    """A step of k rows takes step_ms + row_ms (k - 1) over all its spans, an empty one nothing."""
    engine = SimVerifier(SimSettings(step_ms=30, row_ms=2))
    engine.decode([])
    assert clock.now == 0
    engine.decode([Span(0, 0, (40,), True), Span(1, 0, (40, 41, 42), True)])
    assert clock.now == pytest.approx(0.036, abs=2e-6)


def test_parse() -> None:
    text = "step_ms=34.2, row_ms=1,draft_ms=5.2,alpha=0.5,n_ctx=100,steps_ms=1/2.5,can_trim=0,seed=3"
    assert SimSettings.parse(text) == SimSettings(
        step_ms=34.2, row_ms=1, draft_ms=5.2, alpha=(0.5,), n_ctx=100, steps_ms=(1, 2.5), can_trim=False, seed=3
    )
    assert SimSettings.parse("") == SimSettings()


BAD_SETTINGS = {
    "alpha": ["alpha", "alpha=high", "alpha=1.5", "alpha=nan"],
    "n_": ["n_seq=0", "n_vocab=20", "n_ctx=1.5"],
    "times": ["step_ms=-1", "step_ms=inf", "steps_ms=1/nan"],
    "setting": ["speed=3", "steps_ms=1//2", "can_trim=yes"],
}


@pytest.mark.parametrize(("text", "named"), [(text, named) for named in BAD_SETTINGS for text in BAD_SETTINGS[named]])
def test_parse_errors(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SimSettings.parse(text)
