"""From prompts that anybody may send to tokens: chat templates and long texts, each in a process of its own."""

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from specmesh.core.session_params import ChatMessage
from specmesh.engines.sandbox import Child, Limits
from specmesh.errors import ChildFailed, ConfigError, EngineError, RequestError, SpecmeshError

MAX_TEMPLATE = 2**20
"""Bytes of a file with a template; a longer one is something else."""

RENDERING = Limits(memory=2**29, seconds=3.0)
"""The longest chat that the API takes needs a small part of it."""

SHORT = 4096
"""Characters of a text that needs no such care: each took 350 bytes of a thread's stack, which has 8 MiB or more."""

TOKENIZING = Limits(memory=2**32, seconds=30.0, environment={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""})
"""For one prompt, the reading of the vocabulary included."""


class ChatTemplate:
    """A Jinja template that can be rendered; `bos` is the text of the token that begins a sequence."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        """Compile a template; raises ConfigError where it is none."""
        self.bos = bos
        self._request: dict[str, object] = {"template": source, "bos": bos, "eos": eos}
        self._child = Child("specmesh.engines.chat_child", RENDERING)
        try:
            unusable = self._child.ask({**self._request, "messages": None}).get("unusable")
        except ChildFailed as error:
            unusable = str(error)
        if unusable is not None:
            self.close()
            raise ConfigError(f"the chat template cannot be used: {unusable}", "chat_template")

    def render(self, messages: Sequence[ChatMessage], *, continued: bool = False) -> str:
        """The prompt up to where the assistant begins to answer, or to the end of the last message where that is
        continued; safe from any thread.

        Raises RequestError where the template refuses the messages, EngineError where it does not come to an end.
        """
        asked: dict[str, object] = {"messages": [message.fields() for message in messages], "continued": continued}
        try:
            told = self._child.ask(self._request | asked)
        except ChildFailed as error:
            raise EngineError(
                f"the chat template failed ({error}): give the verifier another --chat-template"
            ) from error
        if "text" not in told:
            why = told.get("refused") or told.get("unusable")
            raise RequestError(f"the model's chat template refuses these messages: {why}", "messages")
        return str(told["text"])

    def close(self) -> None:
        self._child.close()


def read_template(path: Path) -> str:
    """A template from a file; raises ConfigError where it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TEMPLATE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): name a readable file", "chat_template") from None
    if len(raw) > MAX_TEMPLATE:
        raise ConfigError(f"{path}: longer than {MAX_TEMPLATE} bytes: is this a chat template?", "chat_template")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8: save the template as UTF-8 text", "chat_template") from None


class Tokenizer:
    """Tokenizes long texts with a model file's vocabulary.

    llama.cpp splits text by regular expressions, which for many vocabularies take stack for every character of a run:
    a long one ends the process.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._request: dict[str, object] = {"path": str(path.absolute()), "fingerprint": fingerprint}
        self._child = Child("specmesh.engines.llama.child", TOKENIZING)
        self._prepared = False

    def prepare(self) -> None:
        """Start the process in the background, once: a chat grows, and none of its turns should wait for a start."""
        if not self._prepared:
            self._prepared = True
            threading.Thread(target=self._warm_up, name="tokens", daemon=True).start()

    def _warm_up(self) -> None:
        with contextlib.suppress(SpecmeshError):  # who needs it is told
            self.encode("")

    def encode(self, text: str) -> list[int]:
        """Token ids; safe from any thread.

        Raises RequestError where the tokenizer fails over the text, EngineError where the file has changed.
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
        """End its process."""
        self._child.close()
