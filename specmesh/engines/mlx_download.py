"""A model of the Hugging Face hub for MLX: into the hub's own cache, as mlx-lm would, but told while it comes."""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

_FILES = ("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jsonl", "*.jinja")
"""What mlx-lm loads of a repository, without its Python code."""


class Report(Protocol):
    """Hears of the bytes, on threads of the library; what it raises ends the download."""

    def __call__(self, share: float, fetched: int, /) -> None:
        """`fetched` bytes have come so far, and nothing is loaded."""


def download(hub_id: str, report: Report) -> Path:
    """The model's directory in the hub's cache; what is there already is not transferred again.

    Raises whatever the hub's library raises where the model cannot be had.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - comes with mlx-lm

    return Path(snapshot_download(hub_id, allow_patterns=list(_FILES), tqdm_class=_bars(report)))


def _bars(report: Report) -> Any:
    """A class of progress bars that draw nothing and report every byte."""
    tqdm: Any = import_module("huggingface_hub.utils").tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **options | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            if not self._counts_bytes:
                return
            self.n += n or 0
            report(0.0, int(self.n))

    return Bar
