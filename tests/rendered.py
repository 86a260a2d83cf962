"""A target's tokenizer that has a chat template only, rendered in this process."""

import json
from collections.abc import Mapping, Sequence

from specmesh.core.fields import Json, object_at
from specmesh.core.session_params import ChatMessage
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.chat_template import answer
from specmesh.engines.template_probe import traits_of
from specmesh.errors import RequestError


class TemplateTokenizer:
    """`Tokenizer`, without ids. traits: as the template was found to be."""

    vocabulary = Vocabulary((), frozenset())

    def __init__(self, source: str) -> None:
        self.texts: Mapping[str, str] = {"chat_template": source}
        self._request: Json = {"template": source, "bos": "<s>", "eos": "</s>"}
        found = answer({**self._request, "messages": None, "probe": True})
        self._request["traits"] = found["traits"]
        self.traits = traits_of(object_at(found, "traits"))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        raise NotImplementedError

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        chat: Json = {"messages": [one.fields() for one in messages], "continued": continued}
        chat["variables"] = json.loads(json.dumps(variables))
        found = answer(self._request | chat)
        if "text" not in found:
            raise RequestError(str(found["refused"]))
        return str(found["text"])
