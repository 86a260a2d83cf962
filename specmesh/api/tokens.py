"""Resources of llama-server and vLLM for editors and evaluation harnesses: a text as ids, ids or a
chat as text, and what is served."""

from collections.abc import Mapping

from specmesh import __version__
from specmesh.api.backend import ModelInfo
from specmesh.api.body import parse_body
from specmesh.core.fields import Fields, Json, are_ids, is_id, is_list
from specmesh.core.text.chat import Tokenizer, render
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import RequestError

MOST_PARTS = 2**14  # texts to tokenize at once: each takes as long as a short text does


def tokenize(body: object, tokenizer: Tokenizer, n_ctx: int | None = None) -> Json:
    """Return the ids of `content`, a text or a list of texts and ids, as llama-server does. Of
    `prompt`, a text, return them as vLLM does: as a prompt's, unless `add_special_tokens` is
    false. Raise RequestError that names the field."""
    fields = Fields(body)
    if fields.get("prompt") is None:
        return _llama_tokens(fields, tokenizer)
    if fields.get("content") is not None:
        raise RequestError("give content, as to llama-server, or prompt, as to vLLM", "prompt")
    return _vllm_tokens(fields, tokenizer, n_ctx)


def _llama_tokens(fields: Fields, tokenizer: Tokenizer) -> Json:
    content = fields.get("content", "")
    special, pieces = fields.flag("add_special"), fields.flag("with_pieces")
    given = content if is_list(content) else [content]
    parts = [part for part in given if isinstance(part, str) or is_id(part)]
    if sum(isinstance(part, str) for part in parts) > MOST_PARTS:
        raise RequestError(f"content has more than {MOST_PARTS} texts: join some", "content")
    if len(parts) < len(given):
        raise RequestError("content must be a text, or a list of texts and token ids", "content")
    if not fields.flag("parse_special", True):
        raise RequestError(
            "parse_special can only be true: special tokens in a text are always read",
            "parse_special",
        )
    ids = list[int]()
    for at, part in enumerate(parts):
        ids += (
            tokenizer.encode(part, special=special and at == 0) if isinstance(part, str) else [part]
        )
    if not pieces:
        return {"tokens": ids}
    _check(ids, tokenizer.vocabulary, "content")
    return {
        "tokens": [
            {"id": token, "piece": _piece(tokenizer.vocabulary.pieces[token])} for token in ids
        ]
    }


def _vllm_tokens(fields: Fields, tokenizer: Tokenizer, n_ctx: int | None) -> Json:
    special = fields.flag("add_special_tokens", True)
    ids = tokenizer.encode(fields.text("prompt"), special=special)
    written: list[str] | None = None
    if fields.flag("return_token_strs"):
        pieces = tokenizer.vocabulary.pieces
        written = [pieces[token].decode("utf-8", "replace") for token in ids]
    return {"count": len(ids), "max_model_len": n_ctx, "tokens": ids, "token_strs": written}


def _piece(piece: bytes) -> str | list[int]:
    """A token's text, or its bytes where it is a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _check(ids: list[int], vocabulary: Vocabulary, field: str) -> None:
    if max(ids, default=0) >= len(vocabulary):
        raise RequestError(
            f"{field} names token {max(ids)}, and the model has {len(vocabulary)}", field
        )


def detokenize(body: object, vocabulary: Vocabulary) -> Json:
    """Return the text of `tokens` by llama-server's name, `content`, and by vLLM's, `prompt`.
    Raise RequestError."""
    ids = Fields(body).get("tokens", [])
    if not are_ids(ids):
        raise RequestError("tokens must be a list of token ids", "tokens")
    _check(ids, vocabulary, "tokens")
    text = b"".join(vocabulary.pieces[token] for token in ids).decode("utf-8", "replace")
    return {"content": text, "prompt": text}


def apply_template(body: object, tokenizer: Tokenizer) -> Json:
    """The text that the same body of a chat is answered after."""
    [request] = parse_body(body, chat=True).requests
    if not request.messages:
        raise RequestError("messages must be a list with at least one message", "messages")
    return {"prompt": render(request, tokenizer).text}


def tokenizer_info(texts: Mapping[str, str], n_ctx: int | None) -> Json:
    """Return what vLLM's clients, such as lm-eval's remote tokenizer, ask of a tokenizer: null for
    what it lacks."""
    return {
        "bos_token": texts.get("bos_token") or None,
        "eos_token": texts.get("eos_token") or None,
        "pad_token": None,
        "chat_template": texts.get("chat_template") or None,
        "model_max_length": n_ctx,
    }


def model_entry(name: str, info: ModelInfo | None) -> Json:
    """Return a model as a list of models has it: OpenAI's fields, and the tokens of its context by
    the names that clients read of OpenRouter, vLLM and llama-server; null while they are not
    known."""
    n_ctx = info.n_ctx if info is not None else None
    n_vocab = len(info.vocabulary) if info is not None else None
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "specmesh",
        "context_length": n_ctx,
        "max_model_len": n_ctx,
        "meta": {"n_ctx": n_ctx, "n_vocab": n_vocab},
    }


def props(info: ModelInfo) -> Json:
    """What a drafter does not know of its verifier is null."""
    return {
        "default_generation_settings": {"n_ctx": info.n_ctx},
        "total_slots": info.max_sessions,
        "model_alias": info.model,
        "model_path": info.model,
        "modalities": {"vision": False, "audio": False},
        **{name: info.texts.get(name) for name in ("chat_template", "bos_token", "eos_token")},
        "build_info": f"specmesh-{__version__}",
    }
