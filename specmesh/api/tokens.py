"""llama-server's resources for editors and evaluation harnesses: a text as ids, ids or a chat as text, and what is
served."""

from specmesh import __version__
from specmesh.api.body import parse_body
from specmesh.api.requests import ModelInfo
from specmesh.core.chat import Tokenizer, for_template
from specmesh.core.fields import Fields, Json, are_ids, is_id, is_list
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import RequestError


def tokenize(body: object, tokenizer: Tokenizer) -> Json:
    """The ids of `content`: a text, or a list of texts and ids."""
    fields = Fields(body)
    content, special, pieces = (
        fields.get("content", ""),
        fields.flag("add_special"),
        fields.flag("with_pieces"),
    )
    given = content if is_list(content) else [content]
    parts = [part for part in given if isinstance(part, str) or is_id(part)]
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
    ids = Fields(body).get("tokens", [])
    if not are_ids(ids):
        raise RequestError("tokens must be a list of token ids", "tokens")
    _check(ids, vocabulary, "tokens")
    return {
        "content": b"".join(vocabulary.pieces[token] for token in ids).decode("utf-8", "replace")
    }


def apply_template(body: object, tokenizer: Tokenizer) -> Json:
    """The text that the same body of a chat is answered after."""
    [request] = parse_body(body, chat=True).requests
    if not request.messages:
        raise RequestError("messages must be a list with at least one message", "messages")
    messages, variables = for_template(request, tokenizer.texts)
    return {"prompt": tokenizer.chat_text(messages, variables, continued=request.continued)}


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
