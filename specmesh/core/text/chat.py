"""A chat on its way to a target's template, and the form of its answer.

The form of an answer is how the model marks its thoughts and calls tools.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specmesh.core.fields import Json, at, is_list, is_object
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind, compact
from specmesh.core.session_params import MERGED_ROLES, SessionParams
from specmesh.core.text import reasoning
from specmesh.core.text.chat_history import adapted, with_words
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.reasoning import STYLES
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.core.text.tool_formats import FORMATS, GENERIC
from specmesh.core.text.tool_writing import in_words
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import PromptTooLong, RequestError

TAIL = 16  # ids at the end of a prompt, in which it may begin a thought
LONG_CHAT = 2000
"""Messages of a chat that is not tried in every way: each may take a template a second."""


class Encoder(Protocol):
    """A model's tokenizer for text. Every member is safe from any thread."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text, special tokens written in it included.

        special: add the special tokens at its ends. Raises RequestError for a lone surrogate,
        EngineError once the model is closed.
        """
        ...

    def least_ids(self, text: str) -> int:
        """Return a lower bound of the number of ids that `encode` makes of a text, very fast."""
        ...


class Tokenizer(Encoder, Protocol):
    """A target model's texts as ids. Every member is safe from any thread."""

    @property
    def texts(self) -> Mapping[str, str]:
        """Return chat_template, if there is one, bos_token and eos_token: llama-server's names."""
        ...

    @property
    def traits(self) -> TemplateTraits:
        """Return the chat template's traits; the defaults without a template."""
        ...

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        """Return the text of a chat up to the assistant's answer.

        variables: the template's, as well as those that every template has.
        continued: up to the end of the last message.

        Raises RequestError without a template, and if it refuses or drops messages. Raises
        EngineError if the template fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The parts of a grammar of tools that are needed outside the grammar.

    tools: a description of each tool.
    format: the name of the form of calls; "" until the template's is known.
    """

    tools: list[dict[str, object]]
    format: str

    @classmethod
    def of(cls, grammar: Grammar | None) -> "ToolChoice | None":
        """Return the tools of a grammar; None for another grammar.

        Raises RequestError for a text that describes no tools.
        """
        if grammar is None or grammar.kind is not GrammarKind.TOOLS:
            return None
        description: object = json.loads(grammar.text)
        tools = at(description, "tools")
        name = at(description, "format")
        has_format = isinstance(name, str) and name in ("", *FORMATS)
        if not is_list(tools) or not has_format:
            raise RequestError("tools are not described as tools are", "tools")
        return cls(list(filter(is_object, tools)), str(name))


@dataclass(frozen=True, slots=True)
class Rendition:
    """A way to give a chat to a template.

    merged: the roles of messages that were joined to others for it.
    """

    messages: Sequence[ChatMessage]
    variables: dict[str, object]
    merged: frozenset[str]


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a chat that the model continues.

    merged: the roles of messages that were joined to others for it.
    """

    text: str
    merged: tuple[str, ...]


def render(request: Request, tokenizer: Tokenizer) -> RenderedChat:
    """Return a chat as the target's template writes it, in the first way that it does not refuse.

    Raises the RequestError of the first way if it refuses all.
    """
    refusal: RequestError | None = None
    for way in renditions(request, tokenizer.traits):
        try:
            text = tokenizer.chat_text(way.messages, way.variables, continued=request.continued)
        except RequestError as error:
            # The first way is the one that the template was made for, so its error is of use to the
            # client.
            refusal = refusal or error
        else:
            merged = filter(way.merged.__contains__, MERGED_ROLES)
            return RenderedChat(text, tuple(merged))
    raise refusal or RequestError("there is nothing to answer", "messages")


def renditions(request: Request, traits: TemplateTraits) -> Iterator[Rendition]:
    """Yield the ways to give a chat to a template, the one of its traits first.

    The others are for a template that refuses more than its traits show: with more and more
    messages joined, and calls and tools as text.
    """
    choice = ToolChoice.of(request.params.grammar)
    seen = list[Rendition]()
    plainer = list(_ever_plainer(_of_one_form(traits)))
    if len(request.messages) > LONG_CHAT:
        # Each way renders the whole chat, and a template may take long for it. So only the first
        # and the plainest are tried.
        plainer = [plainer[0], plainer[-1]]
    for plain in plainer:
        rendition = _rendition(request, choice, plain)
        if rendition not in seen:
            seen.append(rendition)
            yield rendition
    if request.messages[0].role == "assistant":
        # Some templates want a user's message first, and a client may have cut it from a long chat.
        begun = replace(request, messages=(ChatMessage("user", ""), *request.messages))
        rendition = _rendition(begun, choice, plainer[-1])
        yield replace(rendition, merged=rendition.merged | {"assistant"})


def _of_one_form(traits: TemplateTraits) -> TemplateTraits:
    """Return the traits for one form of calls.

    A template that writes another form than the model's gets earlier calls as text.
    """
    if traits.tool_format == GENERIC.name:
        return replace(traits, tools=False, calls=False, results=False)
    if traits.tool_format == traits.written:
        return traits
    return replace(traits, calls=False)


def _ever_plainer(traits: TemplateTraits) -> Iterator[TemplateTraits]:
    """Yield the traits, then those of templates that take less and less."""
    yield traits
    joined = replace(traits, developer=False, systems=False, late_system=False)
    joined = replace(joined, users=False, assistants=False)
    yield joined
    yield replace(joined, text_with_calls=False, parallel=False)
    yield replace(joined, system=False)
    flat = replace(joined, calls=False, results=False)
    yield flat
    yield replace(flat, system=False)
    words = replace(flat, tools=False)
    yield words
    yield replace(words, system=False)


def _rendition(request: Request, choice: ToolChoice | None, traits: TemplateTraits) -> Rendition:
    """Return a chat as a template takes it.

    Tools are variables of a template that shows them. For any other they are words in the system
    message.
    """
    messages: Sequence[ChatMessage] = request.messages
    variables = dict(request.template)
    form = FORMATS[traits.tool_format]
    if choice is not None and traits.tools:
        tools = list[Json]()
        for tool in choice.tools:
            tools.append({"type": "function", "function": tool})
        variables["tools"] = tools
        # Older templates show tools by this name, as a text.
        variables["functions"] = json.dumps(choice.tools, ensure_ascii=False, indent=1)
    elif choice is not None:
        messages = with_words(messages, in_words(choice.tools, form))
    adapted_messages, merged = adapted(messages, traits)
    return Rendition(adapted_messages, variables, merged)


def unknown_variables(request: Request, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that the model's template does not name; none without a template."""
    template = texts.get("chat_template")
    if not request.template or not template:
        return
    words = set(re.findall(r"\w+", template))
    for name in request.template:
        if name not in words:
            yield name


def with_format(params: SessionParams, traits: TemplateTraits, tail: str) -> SessionParams:
    """Add the model's forms of thoughts and calls to the parameters of a chat's answer.

    Forms that the parameters have already stay.

    tail: the prompt's last text, which may have begun a thought, or ended one.
    """
    style = STYLES.get(traits.thinking)
    grammar = params.grammar
    thinking = params.thinking or reasoning.thinking(style, tail)
    before = reasoning.before_answer(thinking, tail)
    if grammar is not None and grammar.kind is GrammarKind.TOOLS:
        tools = json.loads(grammar.text)
        # A client at a drafter cannot know the form of the verifier's model, so it may be empty
        # until now.
        tools["format"] = tools["format"] or traits.tool_format
        tools["thinking"] = before
        grammar = Grammar(GrammarKind.TOOLS, compact(tools))
    elif grammar is not None:
        grammar = replace(grammar, thinking=before)
    return replace(params, thinking=thinking, grammar=grammar)


def prompt_of(
    request: Request, tokenizer: Tokenizer, n_ctx: int | None = None
) -> tuple[tuple[int, ...], SessionParams]:
    """Return the ids to continue, and the parameters: a chat's have the form of its answer.

    Safe from any thread. Raises RequestError for text that cannot be encoded, and for a chat if
    the target has no template. Raises PromptTooLong for a text that cannot fit into `n_ctx` ids.
    """
    ids = request.prompt_ids
    params = request.params
    if ids is not None:
        text = _text_at_end(ids, tokenizer.vocabulary)
    else:
        text = request.prompt or ""
        if request.messages:
            chat = render(request, tokenizer)
            text = chat.text
            params = replace(params, merged=chat.merged)
        ids = _encoded(text, tokenizer, n_ctx)
    if request.chat:
        params = with_format(params, tokenizer.traits, text)
    return ids, params


def predicted_ids(request: Request, tokenizer: Tokenizer, n_ctx: int) -> tuple[int, ...]:
    """Return the ids of a request's prediction, as far as the text may have them.

    Safe from any thread. Raises RequestError for more than `n_ctx` ids.
    """
    text = request.prediction
    count = tokenizer.least_ids(text)
    ids: tuple[int, ...] = ()
    if count <= n_ctx:
        ids = tuple(tokenizer.encode(text, special=False))
        count = len(ids)
    if count > n_ctx:
        reason = f"prediction.content has {count} tokens or more, and the context {n_ctx}"
        raise RequestError(reason, "prediction.content", "shorten it to the part that is edited")
    return ids


def _text_at_end(ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """Return the end of a prompt as text: enough to see whether it ends inside a thought."""
    last = list[bytes]()
    for token in ids[-TAIL:]:
        if token < len(vocabulary.pieces):
            last.append(vocabulary.pieces[token])
    return b"".join(last).decode("utf-8", "replace")


def _encoded(text: str, tokenizer: Tokenizer, n_ctx: int | None) -> tuple[int, ...]:
    """Return the ids of a prompt.

    An empty prompt, if the target begins none with a token of its own, is the token that ends
    texts, as at OpenAI's.
    """
    if n_ctx is not None:
        # A text can be megabytes long. A bound that needs no encoding refuses it at once.
        least = tokenizer.least_ids(text)
        if least >= n_ctx:
            raise PromptTooLong.of(least, n_ctx, least=True)
    ids = tokenizer.encode(text) or sorted(tokenizer.vocabulary.end_ids)[:1]
    return tuple(ids)
