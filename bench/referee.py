"""The target once more, in the benchmark's own process: it encodes prompts, and judges where texts part."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specmesh.engines.llama import LlamaSettings, LlamaVerifier


@contextmanager
def referee(path: str) -> Iterator[LlamaVerifier]:
    """The model of this file on one thread."""
    engine = LlamaVerifier(LlamaSettings(Path(path), n_ctx=1024, n_seq=1, threads=1, gpu_layers=0, n_batch=1024))
    try:
        yield engine
    finally:
        engine.close()
