"""A target's chat template: its own from the GGUF file, or one from a file, rendered in a process of its own."""

from collections.abc import Sequence
from pathlib import Path

from specmesh.child import Child, Limits
from specmesh.core.chat import ChatMessage
from specmesh.errors import ChildFailed, ConfigError, EngineError, RequestError

MAX_TEMPLATE = 2**20
"""Bytes of a file with a template; a longer one is something else."""

RENDERING = Limits(memory=2**29, seconds=3.0)
"""What rendering may take. The longest chat that the API takes needs a small part of it."""


class ChatTemplate:
    """A Jinja template that can be rendered; `bos` is the text of the token that begins a text."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        """Compile a template; `bos` and `eos` are the texts of the tokens that begin and end a text.

        Raises ConfigError where it is none.
        """
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
