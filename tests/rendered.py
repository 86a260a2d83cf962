"""A target's tokenizer that has a chat template only, rendered in this process."""

import json

from specmesh.core.fields import object_at
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.template_probe import traits_of
from specmesh.engines.template_renderer import answer
from specmesh.errors import RequestError


class TemplateTokenizer:
    """`Tokenizer`, without ids. traits: as the template was found to be."""

    vocabulary = Vocabulary((), frozenset())

    def __init__(self, source):
        self.texts = {"chat_template": source}
        self._request = {"template": source, "bos": "<s>", "eos": "</s>"}
        found = answer({**self._request, "messages": None, "probe": True})
        self._request["traits"] = found["traits"]
        self.traits = traits_of(object_at(found, "traits"))

    def encode(self, text, *, special=True):
        raise NotImplementedError

    def chat_text(self, messages, variables, *, continued=False):
        chat = {"messages": [one.fields() for one in messages], "continued": continued}
        chat["variables"] = json.loads(json.dumps(variables))
        found = answer(self._request | chat)
        if "text" not in found:
            raise RequestError(str(found["refused"]))
        return str(found["text"])
