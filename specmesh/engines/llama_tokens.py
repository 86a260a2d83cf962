"""A target's tokenizer for prompts that anybody may send.

llama.cpp splits text by regular expressions, which for many vocabularies take stack for every character of a run: a
long one ends the process. So a prompt of more than a few lines is tokenized in a process of its own, which is started
when the first comes, or one half as long: a chat grows, and none of its turns should wait for a start.
"""

import contextlib
import threading
from pathlib import Path

from specmesh.child import Child, Limits
from specmesh.errors import ChildFailed, EngineError, RequestError, SpecmeshError

SHORT = 4096
"""Characters of a text that needs no such care: each took 350 bytes of a thread's stack, which has 8 MiB or more."""

TOKENIZING = Limits(memory=2**32, seconds=30.0, environment={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""})
"""What one prompt may take, the reading of the vocabulary included."""


class Tokenizer:
    def __init__(self, path: Path, fingerprint: str) -> None:
        self._request: dict[str, object] = {"path": str(path.absolute()), "fingerprint": fingerprint}
        self._child = Child("specmesh.engines.llama_tokens_child", TOKENIZING)
        self._prepared = False

    def prepare(self) -> None:
        """Start the process beside what goes on, unless that was done before."""
        if not self._prepared:
            self._prepared = True
            threading.Thread(target=self._warm_up, name="tokens", daemon=True).start()

    def _warm_up(self) -> None:
        with contextlib.suppress(SpecmeshError):  # who needs it is told
            self.encode("")

    def encode(self, text: str) -> list[int]:
        """Ids of a text; safe from any thread.

        Raises RequestError where the tokenizer fails over it, EngineError where the file has changed.
        """
        try:
            told = self._child.ask({**self._request, "text": text})
        except ChildFailed as error:
            raise RequestError(f"the model's tokenizer failed over this prompt: {error}", "prompt") from error
        if "refused" in told:
            raise RequestError(str(told["refused"]), "prompt")
        ids = told.get("ids")
        if not isinstance(ids, list):
            raise EngineError(str(told.get("wrong")))
        return ids

    def close(self) -> None:
        self._child.close()
