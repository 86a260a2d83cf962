"""llama.cpp: loading, its errors, its vocabulary and what it logs."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs

from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.base import Span
from specmesh.engines.llama import LlamaDrafter, LlamaSettings, LlamaVerifier
from specmesh.engines.llama import library as llama_library
from specmesh.engines.llama import model as llama_model
from specmesh.errors import ConfigError, EngineError, RequestError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

GREEDY = Sampler(SamplingParams())


def settings(path: Path, **changes: object) -> LlamaSettings:
    return LlamaSettings(**{"path": path, "n_ctx": 64, "n_seq": 2, "threads": 1, "gpu_layers": 0, **changes})


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[LlamaVerifier]:
    engine = LlamaVerifier(settings(tiny_gguf))
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def _fresh_library() -> Iterator[None]:
    """What a test does to the library's cached state ends with it."""
    yield
    structlog.reset_defaults()


class TestFiles:
    """Files that cannot be loaded are refused with their path and what to do."""

    @pytest.fixture
    def refused(self, tmp_path: Path) -> Callable[[bytes | None], str]:
        def load(content: bytes | None) -> str:
            path = tmp_path / "model.gguf"
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(ConfigError) as caught:
                LlamaVerifier(settings(path))
            assert str(path) in str(caught.value)
            return str(caught.value)

        return load

    @pytest.mark.fault("E7.75")
    def test_missing(self, refused: Callable[[bytes | None], str]) -> None:
        """No file: the path is to be checked."""
        assert "check the path" in refused(None)

    @pytest.mark.fault("E7.75")
    def test_directory(self, tmp_path: Path) -> None:
        """A directory is not searched."""
        with pytest.raises(ConfigError, match="is a directory"):
            LlamaVerifier(settings(tmp_path))

    @pytest.mark.fault("E7.75")
    def test_unreadable(self, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file this user may not read."""

        def denied(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", denied)
        with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
            LlamaVerifier(settings(tiny_gguf))

    @pytest.mark.parametrize("content", [b"", b"GGU", b"garbage" * 1000, b"\x80\x02}q\x00."])
    @pytest.mark.fault("E7.76")
    def test_not_gguf(self, refused: Callable[[bytes | None], str], content: bytes) -> None:
        """Anything that does not start like a GGUF never reaches llama.cpp."""
        assert "not a GGUF" in refused(content)

    @pytest.mark.parametrize("version", [b"", b"\x01\0\0\0", b"\0\0\0\x03", b"\xff\xff\xff\xff"])
    @pytest.mark.fault("E7.76")
    def test_unknown_version(self, refused: Callable[[bytes | None], str], version: bytes) -> None:
        """A GGUF of a version or byte order llama.cpp does not read."""
        assert "GGUF version" in refused(b"GGUF" + version)

    @pytest.mark.parametrize("share", [0.0001, 0.002, 0.01, 0.05, 0.5, 0.999])
    @pytest.mark.fault(
        "E7.76",
        "GGUF files that are none, are cut off anywhere, or lie",
        "an error that names file and reason, no crash",
    )
    def test_truncated(self, refused: Callable[[bytes | None], str], tiny_gguf: Path, share: float) -> None:
        """A download that broke off anywhere."""
        content = tiny_gguf.read_bytes()
        message = refused(content[: max(int(len(content) * share), 8)])
        assert "download it again" in message
        assert "gave no reason" not in message


class TestSettings:
    """Settings that cannot work are refused before anything is loaded."""

    @pytest.mark.parametrize(
        "changes",
        [
            *({"n_seq": 0}, {"n_seq": 257}, {"n_ctx": -1}, {"n_ctx": 0}, {"n_ctx": 1}, {"n_ctx": 7}),
            *({"n_batch": 0}, {"max_draft": -1}, {"threads": 0}, {"gpu_layers": -2}, {"gpu_layers": 2**31}),
        ],
        ids=str,
    )
    @pytest.mark.fault(
        "E7.81", "n_ctx 1, n_batch 0, negative layers, given to the engine", "ConfigError, no GGML_ASSERT"
    )
    def test_refused(self, changes: dict[str, int]) -> None:
        """Numbers out of range, some of which llama.cpp ends the process over."""
        with pytest.raises(ConfigError):
            settings(Path("unused"), **changes)

    @pytest.mark.fault("E7.82", "a GPU is required and there is none", "ConfigError that says what to check")
    def test_gpu_required(self, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A GPU that is required and absent, or required and not to be used."""
        monkeypatch.setattr(llama_model, "gpu_devices", lambda: ())
        with pytest.raises(ConfigError, match=r"llama\.cpp sees none"):
            LlamaVerifier(settings(tiny_gguf, gpu_required=True, gpu_layers=-1))
        with pytest.raises(ConfigError, match="gpu_layers is 0"):
            LlamaVerifier(settings(tiny_gguf, gpu_required=True, gpu_layers=0))

    @pytest.mark.parametrize(("layers", "named"), [(-1, "3 of 3 layers"), (1, "1 of 3"), (99, "3 of 3")])
    def test_backend_names_the_gpu(
        self, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, layers: int, named: str
    ) -> None:
        """Facts for people say which GPU holds how many layers."""
        monkeypatch.setattr(llama_model, "gpu_devices", lambda: ("CUDA0: Test GPU",))
        engine = LlamaDrafter(settings(tiny_gguf, gpu_layers=layers, gpu_required=True))
        assert engine.info.backend.startswith("CUDA0: Test GPU, ")
        assert named in engine.info.backend
        engine.close()

    @pytest.mark.parametrize("n_ctx", [2**32 + 64, 2**25])
    @pytest.mark.fault(
        "E5.57",
        "no memory for the model's context; none in a step",
        "a clear error at the start; in a step that request fails, others go on",
    )
    def test_no_memory_for_the_context(self, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, n_ctx: int) -> None:
        """A context beyond 32 bits or beyond all memory is refused with what to choose."""
        lib = llama_library.library()
        monkeypatch.setattr(lib, "llama_init_from_model", lambda *_: None)
        with pytest.raises(ConfigError, match="choose a smaller context"):
            LlamaVerifier(settings(tiny_gguf, n_ctx=n_ctx))

    def test_context_of_the_model(self, tiny_gguf: Path) -> None:
        """Without n_ctx it is the one the model was trained with; only a chosen one that is longer is warned of."""
        for chosen, held, warned in ((None, 512, False), (513, 513, True), (512, 512, False)):
            with capture_logs() as lines:
                engine = LlamaDrafter(settings(tiny_gguf, n_ctx=chosen))
            assert engine.info.n_ctx == held
            assert ("context_beyond_training" in [line["event"] for line in lines]) == warned
            engine.close()

    def test_rows_with_logits_are_bounded(self, tiny_gguf: Path) -> None:
        """max_draft + 1 rows of logits per sequence can be asked for, and no more reach llama.cpp."""
        engine = LlamaVerifier(settings(tiny_gguf, max_draft=3))
        engine.decode([Span(0, 0, tuple(range(8)), logits=True)])
        with pytest.raises(Exception, match="9 with logits"):
            engine.decode([Span(0, 8, tuple(range(9)), logits=True)])
        engine.close()

    def test_more_sequences_than_rows(self, tiny_gguf: Path) -> None:
        """A batch always has room for one row of every sequence."""
        engine = LlamaVerifier(settings(tiny_gguf, n_seq=8, n_batch=2, max_draft=0))
        rows = engine.decode([Span(seq, 0, (seq,), logits=True) for seq in range(8)])
        assert len(rows) == engine.info.n_batch == 8
        engine.close()


class TestProgress:
    """Loading reports how far it is, and can be stopped."""

    def test_reported(self, tiny_gguf: Path) -> None:
        """Fractions rise to 1.0."""
        seen: list[float] = []
        LlamaDrafter(settings(tiny_gguf), seen.append).close()
        assert seen[-1] == 1.0
        assert all(0 <= before <= after for before, after in itertools.pairwise(seen))

    def test_cancelled(self, tiny_gguf: Path) -> None:
        """Answering False stops the load."""
        with pytest.raises(EngineError, match="cancelled"):
            LlamaDrafter(settings(tiny_gguf), lambda _: False)

    def test_exception_passes(self, tiny_gguf: Path) -> None:
        """An exception, Ctrl-C included, stops the load and comes out of it."""

        def interrupt(_: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            LlamaDrafter(settings(tiny_gguf), interrupt)


class TestVocabulary:
    """Pieces and prompts."""

    def test_pieces(self, verifier: LlamaVerifier) -> None:
        """Byte tokens are their bytes, control tokens nothing, user-defined tokens their text."""
        pieces = verifier.vocabulary.pieces
        assert pieces[:256] == tuple(bytes([byte]) for byte in range(256))
        assert pieces[256:262] == (b"he", b"ll", b"th", b"the", b"", b"<tool>")
        assert verifier.vocabulary.end_ids == {260}

    def test_long_pieces(self, verifier: LlamaVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
        """A piece longer than the buffer is read whole."""
        monkeypatch.setattr(llama_model, "_PIECE_BYTES", 2)
        model = verifier._model
        again = llama_model._vocabulary(model.lib, model.vocab, model.n_vocab)
        assert again == verifier.vocabulary

    def test_special_tokens_in_a_prompt(self, verifier: LlamaVerifier) -> None:
        """Special tokens written in a raw prompt are those tokens, as in llama-server's /completion."""
        assert verifier.encode("a<|end|>b<tool>") == [97, 260, 98, 261]

    @pytest.mark.parametrize("text", ["", "\x00", "a\x00b\x00", "the hell", "\U0001f600\u4e2d", "x" * 5000])
    @pytest.mark.fault("E7.83")
    def test_encode(self, verifier: LlamaVerifier, text: str) -> None:
        """Empty, NUL, merged, non-BMP and long texts come back as they were."""
        assert verifier.vocabulary.text(verifier.encode(text)) == text

    def test_encode_grows_its_buffer(self, verifier: LlamaVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where llama.cpp needs more room than expected it is asked again with what it named."""
        model = verifier._model
        sizes: list[int] = []

        def tokenize(vocab: object, raw: bytes, size: int, ids: object, room: int, *flags: bool) -> int:
            sizes.append(room)
            return -20000 if room < 20000 else 7

        monkeypatch.setattr(model.lib, "llama_tokenize", tokenize)
        assert model.encode("short") == [0] * 7
        assert sizes == [13, 20000]

    @pytest.mark.fault("E7.83")
    def test_lone_surrogate(self, verifier: LlamaVerifier) -> None:
        """A text that is no Unicode is the request's fault."""
        with pytest.raises(RequestError, match="Unicode"):
            verifier.encode("\udc80")

    def test_permuted_ids_are_another_vocabulary(self, verifier: LlamaVerifier, make_gguf: Callable[..., Path]) -> None:
        """The same pieces under other ids have another fingerprint; other weights do not."""
        fingerprints = []
        for name, options in (("permuted", {"rotate": 3}), ("reseeded", {"seed": 9})):
            engine = LlamaDrafter(settings(make_gguf(name, **options)))
            fingerprints.append(engine.vocabulary.fingerprint())
            engine.close()
        assert fingerprints[0] != verifier.vocabulary.fingerprint()
        assert fingerprints[1] == verifier.vocabulary.fingerprint()


class TestModels:
    """Facts about models, and failures of llama_decode."""

    @pytest.mark.parametrize(("code", "named"), [(1, "no room"), (2, "code 2"), (-1, "code -1"), (-3, "code -3")])
    def test_failed_step(self, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, code: int, named: str) -> None:
        """A step that fails half-way leaves every sequence as it was, whatever llama.cpp kept of it."""
        engine = LlamaVerifier(settings(tiny_gguf))
        ids = tuple(range(40, 52))
        (straight,) = engine.decode([Span(1, 0, ids, logits=True)])
        assert straight is not None
        expected = straight[8:].copy()
        engine.decode([Span(0, 0, ids[:8], logits=False)])
        decode = engine._cache.lib.llama_decode

        def failing(*arguments: object) -> int:
            decode(*arguments)
            return code

        with monkeypatch.context() as patch:
            patch.setattr(engine._cache.lib, "llama_decode", failing)
            with pytest.raises(EngineError, match=named):
                engine.decode([Span(0, 8, (90, 91), logits=True)])
        (again,) = engine.decode([Span(0, 8, ids[8:], logits=True)])
        assert again is not None
        assert np.allclose(again, expected, atol=1e-3)
        engine.close()

    def test_failed_step_of_a_model_that_cannot_be_cut(
        self, tiny_recurrent_gguf: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its sequence is emptied, so that it can start over."""
        engine = LlamaDrafter(settings(tiny_recurrent_gguf))
        guess = engine.predict(0, [40, 41], GREEDY)
        decode = engine._cache.lib.llama_decode
        with monkeypatch.context() as patch:
            patch.setattr(engine._cache.lib, "llama_decode", lambda *arguments: decode(*arguments) - 3)
            with pytest.raises(EngineError):
                engine.predict(0, [42], GREEDY)
        assert engine.trim(0, 2) == 0
        assert engine.predict(0, [40, 41], GREEDY) == guess
        engine.close()
