"""How rows are taken back by models with recurrent layers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness.engine_contract import GREEDY, predict
from numpy.typing import NDArray

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.engines.llama import LlamaDrafter, LlamaVerifier, library
from specmesh.engines.llama.rollback import Restore
from specmesh.errors import ConfigError, EngineError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

IDS = tuple(range(40, 100))
RESTORING = ["mamba", "lfm2"]


@pytest.fixture
def path(make_gguf: Callable[..., Path]) -> Callable[[str], Path]:
    return lambda arch: make_gguf(f"rewind-{arch}", arch=arch)


def settings(path: Path, max_sessions: int = 2) -> ModelSettings:
    return ModelSettings("llama", str(path), ctx=256, max_sessions=max_sessions, threads=1)


def last_row(engine: LlamaVerifier, *spans: Span) -> NDArray[np.float32]:
    rows = engine.decode(spans)[-1]
    assert rows is not None
    return rows[-1].copy()


def close_to(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    return float(np.abs(left - right).max()) < 0.02


class TestProbe:
    @pytest.mark.fault("E7.79")
    def test_a_wrong_state_shows_in_the_logits(
        self, path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Restore, "load", lambda *_: None)
        with pytest.raises(ConfigError, match="cannot verify"):
            LlamaVerifier(settings(path("lfm2")), max_draft=8)


class TestRestore:
    def test_a_wide_step_taken_back(self, path: Callable[[str], Path]) -> None:
        """More ids to decode again than a step has rows are decoded in pieces."""
        engine = LlamaVerifier(settings(path("lfm2")), n_batch=12, max_draft=11)
        engine.decode([Span(1, 0, IDS[:12], logits=False)])
        expected = last_row(engine, Span(1, 12, IDS[12:13], logits=True))
        engine.trim(1, 0)
        engine.decode([Span(0, 0, IDS[:6], logits=False), Span(1, 0, IDS[:6], logits=False)])
        for start in (6, 9):  # a span with drafts, then one whose ids are remembered with it
            engine.decode([Span(seq, start, (*IDS[start : start + 3], 90, 91, 92), logits=True) for seq in (0, 1)])
            for seq in (0, 1):
                engine.trim(seq, start + 3)
        for seq in (0, 1):
            assert close_to(last_row(engine, Span(seq, 12, IDS[12:13], logits=True)), expected)
        engine.close()

    @pytest.mark.parametrize("arch", RESTORING)
    def test_a_state_that_does_not_come_back(
        self, path: Callable[[str], Path], arch: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = LlamaVerifier(settings(path(arch)), max_draft=8)
        for seq in (0, 1):
            engine.decode([Span(seq, 0, IDS[:8], logits=False)])
        engine.decode([Span(0, 8, IDS[8:12], logits=True)])
        engine.trim(0, 10)
        with monkeypatch.context() as patch:
            patch.setattr(library.library(), "llama_state_seq_set_data_ext", lambda *_: 0)
            with pytest.raises(EngineError, match="did not restore"):
                engine.decode([Span(0, 10, IDS[10:12], logits=True)])
        after = last_row(engine, Span(1, 8, IDS[8:9], logits=True))
        assert close_to(last_row(engine, Span(0, 0, IDS[:9], logits=True)), after)
        engine.close()

    @pytest.mark.parametrize("arch", RESTORING)
    def test_a_long_chain_is_wrong(self, path: Callable[[str], Path], arch: str) -> None:
        """A state that was saved within it is not gone back to."""
        engine, straight = LlamaDrafter(settings(path(arch))), LlamaDrafter(settings(path(arch)))
        predict(engine, 0, IDS[:40], None)
        for token in (*IDS[40:50], *range(40, 90)):
            predict(engine, 0, [token], GREEDY)
        assert engine.trim(0, 50) == 50
        assert predict(engine, 0, IDS[50:51], GREEDY) == predict(straight, 0, IDS[:51], GREEDY)
        engine.close()
        straight.close()
