"""Chat templates, rendered in a child process.

A template is a program by whoever made the model. Jinja's sandbox keeps it from files and programs;
the process limits its time and memory. A template may change lists and objects, as those of Kimi K2
do: each rendering has its own copies.
"""

from collections.abc import Sequence

from specmesh.core.fields import Json, object_at
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.engines.sandbox import Child
from specmesh.engines.template_probe import traits_by_source, traits_of
from specmesh.errors import ChildFailed, ConfigError, EngineError, RequestError

_RENDERER = "specmesh.engines.template_renderer"

MAX_TEMPLATE = 2**20  # bytes of a template's file
LARGE_CHAT = 2**18  # bytes of messages from which on a chat does not hold up others
TEMPLATE_SECONDS = 3.0  # that a template may take for a chat
PROBE_SECONDS = 30.0  # for some fifty short ones, on a busy machine


def template_renderer() -> Child:
    """Return a process for a chat template. It starts when it is first asked, or prepared."""
    # The longest chat that the API takes needs a small part of the memory.
    return Child(_RENDERER, memory=2**29, seconds=TEMPLATE_SECONDS)


class ChatTemplate:
    """A Jinja template.

    bos: the text of the token that begins a sequence.
    traits: the messages that the template takes, and the forms in which it takes them.
    """

    def __init__(self, source: str, bos: str, eos: str, renderer: Child | None = None) -> None:
        """Compile a template, and try it. Raises ConfigError.

        renderer: a `template_renderer`, which belongs to the template from now on.
        """
        self.bos = bos
        self._request: Json = {"template": source, "bos": bos, "eos": eos}
        self._child = renderer or template_renderer()
        self._long = template_renderer()  # begins when needed
        try:
            answered = self._child.ask({**self._request, "messages": None})
        except ChildFailed as error:
            answered = Json(refused=str(error))
        if "refused" in answered:
            self.close()
            raise ConfigError(f"the chat template cannot be used: {answered['refused']}")
        self.traits = self._probed(source)
        self._request["traits"] = self.traits.as_json()

    def _probed(self, source: str) -> TemplateTraits:
        """Return the traits that short chats show.

        If the template takes too much time for these, return the traits that its source shows.
        """
        self._child.seconds = PROBE_SECONDS
        try:
            answered = self._child.ask({**self._request, "messages": None, "probe": True})
        except ChildFailed:
            return traits_by_source(source)
        finally:
            self._child.seconds = TEMPLATE_SECONDS
        return traits_of(object_at(answered, "traits"))

    def render(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        """Return the prompt up to the assistant's answer, or to the end of a `continued` message.

        Safe from any thread. Raises RequestError if the template refuses the messages or drops the
        text of one, EngineError if it fails.
        """
        size = sum(message.size for message in messages)
        child = self._child if size < LARGE_CHAT else self._long
        request: Json = self._request | {
            "messages": [message.fields() for message in messages],
            "continued": continued,
            "variables": variables,
        }
        try:
            answered = child.ask(request)
        except ChildFailed as error:
            reason = f"the chat template failed ({error})"
            raise EngineError(reason, "give the verifier another one") from None
        if "text" not in answered:
            refused = answered["refused"]
            reason = f"the model's chat template refuses these messages: {refused}"
            raise RequestError(reason, "messages")
        return str(answered["text"])

    def close(self) -> None:
        self._child.close()
        self._long.close()
