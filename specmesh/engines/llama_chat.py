"""A target's chat template: its own from the GGUF file, or one from a file, rendered in a sandbox."""

import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specmesh.core.chat import ChatMessage
from specmesh.errors import ConfigError, RequestError

MAX_TEMPLATE = 2**20
"""Bytes of a file with a template; a longer one is something else."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template that can be rendered; `bos` is the text of the token that begins a text."""

    formatter: Any
    bos: str

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt up to where the assistant begins to answer; raises RequestError where the template refuses."""
        try:
            prompt: str = self.formatter(messages=[asdict(message) for message in messages]).prompt
        except Exception as error:  # noqa: BLE001  (a template may raise anything)
            raise RequestError(f"the model's chat template refuses these messages: {error}", "messages") from None
        return prompt


def chat_template(source: str, bos: str, eos: str) -> ChatTemplate:
    """Compile a template; `bos` and `eos` are the texts of the tokens that begin and end a text. Raises ConfigError."""
    chat_format = importlib.import_module("llama_cpp.llama_chat_format")
    try:
        return ChatTemplate(chat_format.Jinja2ChatFormatter(source, eos_token=eos, bos_token=bos), bos)
    except Exception as error:  # noqa: BLE001  (whatever Jinja raises for what is no template)
        raise ConfigError(f"the chat template cannot be used: {error}", "chat_template") from None


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
