"""Items of a conversation that no template knows, such as those of another server's tools."""

import re

from specmesh.api.json_text import to_json
from specmesh.core.fields import Json, is_list, is_object

_HIDDEN = (
    "type",
    "role",
    "id",
    "call_id",
    "tool_use_id",
    "status",
    "encrypted_content",
    "cache_control",
)
"""Fields that mean nothing to a model."""

_BLOB = re.compile(r"(data:[^,]*,)?[A-Za-z0-9+/=_-]{257,}")
"""A text that is an image or the like in base64."""


def in_words(item: Json, kind: str) -> str:
    """Return an item that no template knows, such as a web_search_call, as a line of text."""
    shown: Json = {}
    for name, value in item.items():
        if name not in _HIDDEN and value is not None:
            shown[name] = _readable(value)
    if not shown:
        return f"[{kind}]"
    return f"[{kind}] {to_json(shown)}"


def _readable(value: object) -> object:
    """Return JSON with a note in the place of each text that only a program can read."""
    if isinstance(value, str):
        return "(binary data)" if _BLOB.fullmatch(value) else value
    if is_object(value):
        return {name: _readable(inner) for name, inner in value.items()}
    if is_list(value):
        return [_readable(inner) for inner in value]
    return value
