"""A chat on its way to a target's template, and the form of its answer: how the model thinks and
calls tools."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specmesh.core.fields import Json, at, is_list, is_object
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind, compact
from specmesh.core.session_params import MERGED_ROLES, ChatMessage, SessionParams
from specmesh.core.text import reasoning
from specmesh.core.text.chat_history import adapted, with_words
from specmesh.core.text.reasoning import STYLES
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.core.text.tool_formats import FORMATS, GENERIC, in_words
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import PromptTooLong, RequestError

TAIL = 16  # ids at the end of a prompt, in which it may begin a thought
LONG_CHAT = 2000
"""Messages of a chat that is not tried in every way: each may take a template a second."""


class Tokenizer(Protocol):
    """A target model's texts as ids. Every member is safe from any thread."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def texts(self) -> Mapping[str, str]:
        """Return by llama-server's names: chat_template, where there is one, bos_token and
        eos_token."""
        ...

    @property
    def traits(self) -> TemplateTraits:
        """Return what the chat template takes; the defaults where there is none."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a prompt, with the model's special tokens at its ends unless they are
        not wanted."""
        ...

    def least_ids(self, text: str) -> int:
        """Return a number of ids that `encode` makes of a text at least, in next to no time."""
        ...

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        """Return a chat up to the assistant's answer, or to the end of the last message if
        `continued`, to be encoded.
        variables: the template's, besides those that every template has. Raises RequestError where
        there is no template, or it refuses or drops messages, EngineError where it fails."""
        ...


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a grammar of tools says that is needed outside the grammar. format: "" where no template
    has said it yet."""

    tools: list[dict[str, object]]
    format: str

    @classmethod
    def of(cls, grammar: Grammar | None) -> "ToolChoice | None":
        """None for another grammar, or none; RequestError where its text says something else."""
        if grammar is None or grammar.kind is not GrammarKind.TOOLS:
            return None
        said: object = json.loads(grammar.text)
        tools, name = at(said, "tools"), at(said, "format")
        if not is_list(tools) or not isinstance(name, str) or name not in ("", *FORMATS):
            raise RequestError("tools are not described as tools are", "tools")
        return cls([one for one in tools if is_object(one)], name)


@dataclass(frozen=True, slots=True)
class Rendition:
    """A way to give a chat to a template. merged: the roles of messages that were joined to others
    for it."""

    messages: Sequence[ChatMessage]
    variables: dict[str, object]
    merged: frozenset[str]


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text that a chat is answered after. merged: the roles of messages that were joined to
    others for it."""

    text: str
    merged: tuple[str, ...]


def render(request: Request, tokenizer: Tokenizer) -> RenderedChat:
    """Return a chat as the target's template writes it, in the first way that it does not refuse.
    Raises the RequestError of the first way where it refuses all."""
    refusal: RequestError | None = None
    for one in renditions(request, tokenizer.traits):
        try:
            text = tokenizer.chat_text(one.messages, one.variables, continued=request.continued)
        except RequestError as error:
            refusal = refusal or error
        else:
            return RenderedChat(text, tuple(role for role in MERGED_ROLES if role in one.merged))
    raise refusal or RequestError("there is nothing to answer", "messages")


def renditions(request: Request, traits: TemplateTraits) -> Iterator[Rendition]:
    """Yield the ways to give a chat to a template: as its traits are, then with more and more
    joined, and calls and tools as text, for a template that is more particular than they say."""
    choice = ToolChoice.of(request.params.grammar)
    seen = list[Rendition]()
    plainer = list(_ever_plainer(_of_one_form(traits)))
    if len(request.messages) > LONG_CHAT:
        plainer = [plainer[0], plainer[-1]]
    for one in plainer:
        rendition = _rendition(request, choice, one)
        if rendition not in seen:
            seen.append(rendition)
            yield rendition
    if request.messages[0].role == "assistant":
        begun = replace(request, messages=(ChatMessage("user", ""), *request.messages))
        rendition = _rendition(begun, choice, plainer[-1])
        yield replace(rendition, merged=rendition.merged | {"assistant"})


def _of_one_form(traits: TemplateTraits) -> TemplateTraits:
    """Return the traits for one form of calls: a template that writes another one gets earlier
    calls as text."""
    form = traits.tool_format
    if form == GENERIC.name:
        return replace(traits, tools=False, calls=False, results=False)
    return traits if traits.written == form else replace(traits, calls=False)


def _ever_plainer(traits: TemplateTraits) -> Iterator[TemplateTraits]:
    """Yield the traits, then those of templates that take less and less."""
    yield traits
    joined = replace(traits, developer=False, systems=False, late_system=False)
    joined = replace(joined, users=False, assistants=False)
    yield joined
    apart = replace(joined, text_with_calls=False, parallel=False)
    yield apart
    yield replace(joined, system=False)
    flat = replace(joined, calls=False, results=False)
    yield flat
    yield replace(flat, system=False)
    words = replace(flat, tools=False)
    yield words
    yield replace(words, system=False)


def _rendition(request: Request, choice: ToolChoice | None, traits: TemplateTraits) -> Rendition:
    messages: Sequence[ChatMessage] = request.messages
    variables = dict(request.template)
    form = FORMATS[traits.tool_format]
    if choice is not None and traits.tools:
        tools = [{"type": "function", "function": one} for one in choice.tools]
        variables["tools"] = tools
        variables["functions"] = json.dumps(choice.tools, ensure_ascii=False, indent=1)
    elif choice is not None:
        messages = with_words(messages, in_words(choice.tools, form))
    adapted_messages, merged = adapted(messages, traits)
    return Rendition(adapted_messages, variables, merged)


def unknown_variables(request: Request, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that the model's template does not name; none where it is not known."""
    if request.template and (template := texts.get("chat_template")):
        words = set(re.findall(r"\w+", template))
        yield from (name for name in request.template if name not in words)


def with_format(params: SessionParams, traits: TemplateTraits, tail: str) -> SessionParams:
    """Return the parameters of a chat's answer with how the model thinks and calls tools, unless
    they have it. tail: the prompt's last text, which may have begun a thought, or ended one."""
    style, grammar = STYLES.get(traits.thinking), params.grammar
    thinking = params.thinking or reasoning.thinking(style, tail)
    before = reasoning.before_answer(thinking, tail)
    if grammar is not None and grammar.kind is GrammarKind.TOOLS:
        said = json.loads(grammar.text)
        said |= {"format": said["format"] or traits.tool_format, "thinking": before}
        grammar = Grammar(GrammarKind.TOOLS, compact(said))
    elif grammar is not None:
        grammar = replace(grammar, thinking=before)
    return replace(params, thinking=thinking, grammar=grammar)


def prompt_of(
    request: Request, tokenizer: Tokenizer, n_ctx: int | None = None
) -> tuple[tuple[int, ...], SessionParams]:
    """Return the ids to continue, by the target's tokenizer and chat template, and the parameters;
    those of a chat have the form of its answer. Safe from any thread. An empty text, where the
    target begins none with a token of its own, is what ends others, as at OpenAI's. Raises
    RequestError for text that cannot be encoded, and for a chat where the target has no template;
    PromptTooLong for a text that cannot fit into `n_ctx` ids."""
    ids, params = request.prompt_ids, request.params
    if ids is not None:
        pieces = tokenizer.vocabulary.pieces
        last = [pieces[one] for one in ids[-TAIL:] if one < len(pieces)]
        text = b"".join(last).decode("utf-8", "replace")
    else:
        text = request.prompt or ""
        if request.messages:
            chat = render(request, tokenizer)
            text, params = chat.text, replace(params, merged=chat.merged)
        if n_ctx is not None and (least := tokenizer.least_ids(text)) >= n_ctx:
            raise PromptTooLong.of(least, n_ctx, least=True)
        ids = tuple(tokenizer.encode(text) or sorted(tokenizer.vocabulary.end_ids)[:1])
    return ids, with_format(params, tokenizer.traits, text) if request.chat else params
