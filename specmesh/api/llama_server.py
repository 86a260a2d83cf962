"""Resources of llama-server and vLLM for editors and evaluation harnesses.

They return a text as ids, ids or a chat as text, and the model that is served.
"""

from collections.abc import Mapping, Sequence

from specmesh import __version__
from specmesh.api.backend import ModelInfo
from specmesh.api.dialects.chat import parse_chat
from specmesh.core.fields import Fields, Json, are_ids, is_id, is_list
from specmesh.core.text.chat import Tokenizer, render
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import RequestError

MOST_PARTS = 2**14
"""Texts that are tokenized at once: each takes as long as a short text does."""


def tokenize(body: object, tokenizer: Tokenizer, n_ctx: int | None = None) -> Json:
    """Return the ids of `content`, a text or a list of texts and ids, as llama-server does.

    Of `prompt`, a text, return them as vLLM does: those of a prompt, unless `add_special_tokens`
    is false. Raises RequestError that names the field.
    """
    fields = Fields(body)
    if fields.get("prompt") is None:
        return _llama_tokens(fields, tokenizer)
    if fields.get("content") is not None:
        raise RequestError("give content, as to llama-server, or prompt, as to vLLM", "prompt")
    return _vllm_tokens(fields, tokenizer, n_ctx)


def _llama_tokens(fields: Fields, tokenizer: Tokenizer) -> Json:
    content = fields.get("content", "")
    special = fields.flag("add_special")
    with_pieces = fields.flag("with_pieces")
    given = content if is_list(content) else [content]
    texts = 0
    for part in given:
        if isinstance(part, str):
            texts += 1
        elif not is_id(part):
            why = "content must be a text, or a list of texts and token ids"
            raise RequestError(why, "content")
    if texts > MOST_PARTS:
        raise RequestError(f"content has more than {MOST_PARTS} texts: join some", "content")
    if not fields.flag("parse_special", True):
        why = "parse_special can only be true: special tokens in a text are always read"
        raise RequestError(why, "parse_special")
    ids: list[int] = []
    for number, part in enumerate(given):
        if isinstance(part, str):
            ids += tokenizer.encode(part, special=special and number == 0)
        elif is_id(part):
            ids.append(part)
    if not with_pieces:
        return {"tokens": ids}
    vocabulary = tokenizer.vocabulary
    _check(ids, vocabulary, "content")
    return {"tokens": [{"id": token, "piece": _piece(token, vocabulary)} for token in ids]}


def _vllm_tokens(fields: Fields, tokenizer: Tokenizer, n_ctx: int | None) -> Json:
    special = fields.flag("add_special_tokens", True)
    ids = tokenizer.encode(fields.text("prompt"), special=special)
    texts: list[str] | None = None
    if fields.flag("return_token_strs"):
        pieces = tokenizer.vocabulary.pieces
        texts = [pieces[token].decode("utf-8", "replace") for token in ids]
    return {"count": len(ids), "max_model_len": n_ctx, "tokens": ids, "token_strs": texts}


def _piece(token: int, vocabulary: Vocabulary) -> str | list[int]:
    """Return the text of a token, or its bytes if it is a part of a character."""
    piece = vocabulary.pieces[token]
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _check(ids: list[int], vocabulary: Vocabulary, field: str) -> None:
    """Raise RequestError for an id that is not in the vocabulary."""
    largest = max(ids, default=0)
    if largest >= len(vocabulary):
        why = f"{field} names token {largest}, and the model has {len(vocabulary)}"
        raise RequestError(why, field)


def detokenize(body: object, vocabulary: Vocabulary) -> Json:
    """Return the text of `tokens` by the names of llama-server and vLLM. Raises RequestError."""
    ids = Fields(body).get("tokens", [])
    if not are_ids(ids):
        raise RequestError("tokens must be a list of token ids", "tokens")
    _check(ids, vocabulary, "tokens")
    text = b"".join(vocabulary.pieces[token] for token in ids).decode("utf-8", "replace")
    return {"content": text, "prompt": text}


def apply_template(body: object, tokenizer: Tokenizer) -> Json:
    """Return the text after which a chat is answered. Raises RequestError."""
    [request] = parse_chat(body).requests
    if not request.messages:
        raise RequestError("messages must be a list with at least one message", "messages")
    return {"prompt": render(request, tokenizer).text}


def tokenizer_info(texts: Mapping[str, str], n_ctx: int | None) -> Json:
    """Return the facts about a tokenizer that vLLM's clients need, such as lm-eval."""
    return {
        "bos_token": texts.get("bos_token") or None,
        "eos_token": texts.get("eos_token") or None,
        "pad_token": None,
        "chat_template": texts.get("chat_template") or None,
        "model_max_length": n_ctx,
    }


def model_entry(name: str, info: ModelInfo | None) -> Json:
    """Return a model as a list of models has it.

    It has OpenAI's fields and Anthropic's, and the tokens of its context by the names of
    Anthropic, OpenRouter, vLLM and llama-server; null while they are unknown.
    """
    n_ctx: int | None = None
    n_vocab: int | None = None
    if info is not None:
        n_ctx = info.n_ctx
        n_vocab = len(info.vocabulary)
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "specmesh",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": n_ctx,
        "context_length": n_ctx,
        "max_model_len": n_ctx,
        "meta": {"n_ctx": n_ctx, "n_vocab": n_vocab},
    }


def model_list(entries: Sequence[Json]) -> Json:
    """Return a list of models as OpenAI has it, and the fields of Anthropic's pages."""
    return {
        "object": "list",
        "data": entries,
        "has_more": False,
        "first_id": entries[0]["id"],
        "last_id": entries[-1]["id"],
    }


def props(info: ModelInfo) -> Json:
    """Return llama-server's properties; null for those that a drafter does not know."""
    return {
        "default_generation_settings": {"n_ctx": info.n_ctx},
        "total_slots": info.max_sessions,
        "model_alias": info.model,
        "model_path": info.model,
        "modalities": {"vision": False, "audio": False},
        "chat_template": info.texts.get("chat_template"),
        "bos_token": info.texts.get("bos_token"),
        "eos_token": info.texts.get("eos_token"),
        "build_info": f"specmesh-{__version__}",
    }
