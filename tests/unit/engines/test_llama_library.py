"""The llama.cpp library itself: which one it is, and what it logs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from specmesh.engines.llama import library as llama_library
from specmesh.errors import ConfigError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models


@pytest.fixture(autouse=True)
def _fresh_library() -> Iterator[None]:
    """What a test does to the library's cached state ends with it."""
    yield
    structlog.reset_defaults()


class TestLibrary:
    @pytest.fixture(autouse=True)
    def _uncached(self) -> Iterator[None]:
        llama_library.library.cache_clear()
        yield
        llama_library.library.cache_clear()

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "llama_cpp", None)
        with pytest.raises(ConfigError, match=r'not installed: pip install "specmesh\[llama\]"'):
            llama_library.library()

    def test_pin_is_the_packages(self) -> None:
        pyproject = Path(__file__).parents[3] / "pyproject.toml"
        assert f"llama-cpp-python=={llama_library.PINNED}" in pyproject.read_text()


class TestLog:
    def test_fragments_become_lines(self) -> None:
        log = llama_library.LibraryLog()
        with capture_logs() as lines:
            for level, text in [
                (2, b"load"),
                (5, b"ing\nnext"),
                (3, b"careful\n"),
                (5, b"....\n"),
                (4, b"bad \xff\n"),
            ]:
                log.feed(level, text)
        assert [(line["log_level"], line["line"]) for line in lines] == [
            ("debug", "loading"),
            ("debug", "next"),
            ("warning", "careful"),
            ("error", "bad \ufffd"),
        ]
        assert list(log.errors) == ["bad \ufffd"]

    def test_nothing_on_stderr(self, tiny_gguf: Path) -> None:
        program = (
            "import sys, structlog; from pathlib import Path; from specmesh.engines.llama import *;"
            "structlog.configure(logger_factory=structlog.ReturnLoggerFactory());"
            "LlamaVerifier(LlamaSettings(Path(sys.argv[1]), n_ctx=64, threads=1))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tiny_gguf)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("", "")
