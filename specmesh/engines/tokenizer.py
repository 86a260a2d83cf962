"""A target's tokenizer: the encoder of its library, and its chat template."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from specmesh.core.fields import Json
from specmesh.core.text.chat import Encoder
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.engines.chat_template import ChatTemplate
from specmesh.engines.sandbox import Child
from specmesh.errors import ConfigError, RequestError

log = structlog.get_logger("specmesh.engines")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTexts:
    """The texts that a model's file holds for a chat.

    bos, eos: the tokens that begin and end a sequence, as a template writes them.
    adds_bos: the encoder begins each prompt with `bos` anyway.
    template: the source of the chat template, or empty.
    """

    bos: str
    eos: str
    adds_bos: bool
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTemplate:
    """The chat template that the settings ask for, and the process that renders it.

    renderer: belongs to the tokenizer from then on.
    source: of the template; None for the model's own.
    tool_format: of calls; None for that which the template shows.
    """

    renderer: Child
    source: str | None = None
    tool_format: str | None = None


class ChatTokenizer:
    """`Tokenizer` by an encoder and a chat template.

    texts: by llama-server's names, the bos_token, the eos_token, and the chat_template if there is
        one.
    traits: the properties of the template, or the defaults.
    """

    def __init__(
        self,
        name: str,
        encoder: Encoder,
        own: ModelTexts,
        chosen: ChosenTemplate,
    ) -> None:
        """Use the `chosen` template, or the model's own if it works.

        Raises ConfigError for an invalid chosen one.
        """
        self.encoder = encoder
        self.vocabulary = encoder.vocabulary
        self.encode = encoder.encode
        self.least_ids = encoder.least_ids
        self.texts = {"bos_token": own.bos, "eos_token": own.eos}
        self.traits = TemplateTraits()
        self._template: ChatTemplate | None = None
        self._no_template = f"{name} has no chat template"
        self._begins_twice = own.bos if own.adds_bos else ""
        own_template = chosen.source is None
        source = own.template if chosen.source is None else chosen.source
        try:
            if source or not own_template:
                self._template = ChatTemplate(source, own.bos, own.eos, chosen.renderer)
            else:
                chosen.renderer.close()
        except ConfigError as error:
            if not own_template:
                raise
            log.warning("chat_template_unusable", error=str(error))
            self._no_template = f"{name}: {error}"
        if self._template is not None:
            self.texts["chat_template"] = source
            self.traits = self._template.traits
        if chosen.tool_format is not None:
            self.traits = replace(self.traits, tool_format=chosen.tool_format)

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        """Return the text of a chat, without the bos token if the encoder adds it."""
        if self._template is None:
            remedy = "give the verifier --chat-template FILE"
            raise RequestError(self._no_template, "messages", remedy)
        text = self._template.render(messages, variables, continued=continued)
        return text.removeprefix(self._begins_twice)

    def close(self) -> None:
        """End the processes of the template."""
        if self._template is not None:
            self._template.close()
