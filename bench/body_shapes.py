"""Bodies of 2 MiB that ask for much, which `bodies.py` sends."""

import json
from collections.abc import Callable
from dataclasses import dataclass

SIZE = 2 * 1024 * 1024
"""Bytes that the API takes at most."""

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
NUMBER = "@" * 8
"""Stands for a number in a body that is never sent twice."""

Json = dict[str, object]

_PROMPT = b'{"max_tokens":1,"prompt":'
_CHAT = b'{"max_tokens":1,"messages":'
_RESPONSE = b'{"max_output_tokens":1,"input":'
_ASKED = {"prompt": "x", "max_tokens": 1}
_SPOKEN = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@dataclass(frozen=True, slots=True)
class Shape:
    """A request's path and body. chunk: bytes of each part of the body, 0 for a body in one."""

    name: str
    path: str
    body: bytes
    chunk: int = 0


def filled(before: bytes, unit: bytes, after: bytes, size: int, comma: bytes = b",") -> bytes:
    """Return as many of `unit` as fit into `size` bytes, with commas between, after one and before
    another part."""
    room = size - len(before) - len(after) - len(unit)
    return before + (unit + comma) * (room // len(unit + comma)) + unit + after


def numbered(before: bytes, unit: Callable[[int], str], after: bytes, size: int) -> bytes:
    """Return as many different units as fit into `size` bytes, with commas between."""
    parts: list[bytes] = []
    room = size - len(before) - len(after)
    number = 0
    while True:
        part = unit(number).encode()
        room -= len(part) + 1
        if room < 0:
            return before + b",".join(parts) + after
        parts.append(part)
        number += 1


def _object(value: object) -> bytes:
    return json.dumps(value).encode()


def _with(fields: object, name: str) -> bytes:
    """Return an object up to the value of another field of it."""
    return _object(fields)[:-1] + f',"{name}":'.encode()


def _call(number: int) -> str:
    return f'{{"type":"function_call","call_id":"c{number}","name":"f","arguments":"{{}}"}}'


def _called(number: int) -> str:
    return f'{{"id":"c{number}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}'


def _said(number: int) -> str:
    return f'{{"role":"{"assistant" if number % 2 else "user"}","content":"x"}}'


_TOOL = b'{"type":"function","function":{"name":"f"}}'
_DEEP = b"[" * 400 + b"]" * 400


def completions(size: int = SIZE) -> list[Shape]:
    """Return shapes of a completion's body."""
    shapes = {
        "a text of one letter": filled(_PROMPT + b'"', b"x", b'"}', size, comma=b""),
        "a text of blanks": filled(_PROMPT + b'"', b" ", b'"}', size, comma=b""),
        "a text of words": filled(_PROMPT + b'"', b"to be or ", b'"}', size, comma=b""),
        "a text of escapes": filled(_PROMPT + b'"', b"\\u00e9\\n", b'"}', size, comma=b""),
        "a text of emojis": filled(
            _PROMPT + b'"', "\N{GRINNING FACE}".encode(), b'"}', size, comma=b""
        ),
        "a prompt of ids": filled(_PROMPT + b"[", b"1", b"]}", size),
        "128 prompts": filled(_PROMPT + b"[", b'"%s"' % (b"word " * (size // 655)), b"]}", size),
        "prompts without end": filled(_PROMPT + b"[", b'""', b"]}", size),
        "empty lists as prompts": filled(_PROMPT + b"[", b"[]", b"]}", size),
        "prompts of one id": filled(_PROMPT + b"[", b"[1]", b"]}", size),
        "a wrong id at the end": filled(_PROMPT + b"[", b"1", b',"x"]}', size),
        "stops": filled(_with(_ASKED, "stop") + b"[", b'"a"', b"]}", size),
        "logit_bias as pairs": filled(_with(_ASKED, "logit_bias") + b"[", b"[1,1]", b"]}", size),
        "logit_bias by id": numbered(
            _with(_ASKED, "logit_bias") + b"{", lambda number: f'"{number}":1', b"}}", size
        ),
        "a resumed text": filled(
            b'{"resume":{"id":"cmpl-' + b"0" * 32 + b'","prompt_token_ids":[1],"token_ids":[',
            b"1",
            b"]}}",
            size,
        ),
        "a resumed text with a grammar": filled(
            b'{"grammar":"root ::= .*","resume":{"id":"cmpl-'
            + b"0" * 32
            + b'","prompt_token_ids":[1],"token_ids":[',
            b"66",
            b"]}}",
            min(size, 24_000),  # or it could not fit into a common context
        ),
        "unknown fields": numbered(
            _object(_ASKED)[:-1] + b",", lambda number: f'"u{number}":1', b"}", size
        ),
        "an unknown field of empty lists": filled(_with(_ASKED, "u") + b"[", b"[]", b"]}", size),
        "an unknown field of floats": filled(_with(_ASKED, "u") + b"[", b"1.5", b"]}", size),
        "an unknown field of long numbers": filled(
            _with(_ASKED, "u") + b"[", b"1" * 4000, b"]}", size
        ),
        "an unknown field of objects": filled(_with(_ASKED, "u") + b"[", b'{"a":1}', b"]}", size),
        "deep lists side by side": filled(_with(_ASKED, "u") + b"[", _DEEP, b"]}", size),
        "the same field again": filled(b"{", b'"prompt":"x"', b"}", size),
        "a long grammar": filled(
            _with(_ASKED, "grammar") + b'"root ::= ', b"[a] ", b'"}', size, comma=b""
        ),
        "a schema of many properties": numbered(
            _with(_ASKED, "json_schema") + b'{"type":"object","properties":{',
            lambda number: f'"p{number}":{{}}',
            b"}}}",
            size,
        ),
        "stream options": numbered(
            _with(_ASKED, "stream_options") + b"{", lambda number: f'"u{number}":1', b"}}", size
        ),
        "brackets that never close": filled(_PROMPT, b"[", b"", size, comma=b""),
        "no JSON at its end": filled(_PROMPT + b"[", b"1", b"]", size),
        "no JSON": filled(b"", b"x", b"", size, comma=b""),
    }
    return [Shape(name, COMPLETIONS, body) for name, body in shapes.items()]


def chats(size: int = SIZE) -> list[Shape]:
    """Return shapes of a chat's body."""
    tool = b'{"role":"tool","tool_call_id":"c","content":"x"}'
    message = b'{"role":"user","content":"x","u":'
    shapes = {
        "tool messages": filled(_CHAT + b"[", tool, b"]}", size),
        "turns": numbered(_CHAT + b"[", _said, b"]}", size),
        "system messages": filled(_CHAT + b"[", b'{"role":"system","content":""}', b"]}", size),
        "empty messages": filled(_CHAT + b"[", b'{"role":"a","content":""}', b"]}", size),
        "messages that are none": filled(_CHAT + b"[", b"1", b"]}", size),
        "one long message": filled(
            _CHAT + b'[{"role":"user","content":"', b"word ", b'"}]}', size, comma=b""
        ),
        "content parts": filled(
            _CHAT + b'[{"role":"user","content":[', b'{"type":"text","text":"x"}', b"]}]}", size
        ),
        "calls in one message": numbered(
            _CHAT + b'[{"role":"assistant","tool_calls":[', _called, b"]}]}", size
        ),
        "a call with a text of long arguments": filled(
            _CHAT
            + b'[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\\"a\\":[',
            b"1",
            b']}"}}]}]}',
            size,
        ),
        "a call with long arguments": filled(
            _CHAT
            + b'[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":[',
            b"[]",
            b"]}}}]}]}",
            size,
        ),
        "unknown fields of a message": numbered(
            _CHAT + b"[" + message + b"{", lambda number: f'"u{number}":1', b"}}]}", size
        ),
        "tools": filled(_with(_SPOKEN, "tools") + b"[", _TOOL, b"]}", size),
        "tools that are not to be called": filled(
            _with(_SPOKEN | {"tool_choice": "none"}, "tools") + b"[", _TOOL, b"]}", size
        ),
        "tools of other kinds": filled(
            _with(_SPOKEN, "tools") + b"[", b'{"type":"web_search"}', b"]}", size
        ),
        "template variables": numbered(
            _with(_SPOKEN, "chat_template_kwargs") + b"{",
            lambda number: f'"u{number}":1',
            b"}}",
            size,
        ),
        "a template variable of lists": filled(
            _with(_SPOKEN, "chat_template_kwargs") + b'{"u":[', b"[]", b"]}}", size
        ),
        "eight answers to a long chat": numbered(
            _object({"n": 8, "max_tokens": 1})[:-1] + b',"messages":[', _said, b"]}", size
        ),
        "a schema as response_format": numbered(
            _with(_SPOKEN, "response_format")
            + b'{"type":"json_schema","json_schema":{"schema":{"properties":{',
            lambda number: f'"p{number}":{{}}',
            b"}}}}}",
            size,
        ),
    }
    return [Shape(name, CHAT, body) for name, body in shapes.items()]


def responses(size: int = SIZE) -> list[Shape]:
    """Return shapes of the body of a response."""
    output = b'{"type":"function_call_output","call_id":"c","output":"x"}'
    thought = b'{"type":"reasoning","summary":[{"type":"summary_text","text":"x"}]}'
    asked = {"input": "x", "max_output_tokens": 1}
    shapes = {
        "function calls": numbered(_RESPONSE + b"[", _call, b"]}", size),
        "outputs of calls": filled(_RESPONSE + b"[", output, b"]}", size),
        "thoughts": filled(_RESPONSE + b"[", thought, b"]}", size),
        "items": numbered(_RESPONSE + b"[", _said, b"]}", size),
        "developer items": filled(
            _RESPONSE + b"[", b'{"role":"developer","content":"x"}', b"]}", size
        ),
        "items of other tools": filled(
            _RESPONSE + b"[", b'{"type":"web_search_call","status":"completed"}', b"]}", size
        ),
        "parts of an item": filled(
            _RESPONSE + b'[{"role":"user","content":[',
            b'{"type":"input_text","text":"x"}',
            b"]}]}",
            size,
        ),
        "metadata": numbered(
            _with(asked, "metadata") + b"{", lambda number: f'"m{number}":""', b"}}", size
        ),
        "metadata of lists": filled(_with(asked, "metadata") + b'{"m":[', b"[]", b"]}}", size),
        "what else a text has": numbered(
            _with(asked, "text") + b"{", lambda number: f'"u{number}":1', b"}}", size
        ),
        "what to include": filled(_with(asked, "include") + b"[", b'"a"', b"]}", size),
        "tools of a response": filled(
            _with(asked | {"tool_choice": "none"}, "tools") + b"[",
            b'{"type":"function","name":"f"}',
            b"]}",
            size,
        ),
        "long instructions": filled(
            _with(asked, "instructions") + b'"', b"word ", b'"}', size, comma=b""
        ),
    }
    return [Shape(name, RESPONSES, body) for name, body in shapes.items()]


def others(size: int = SIZE) -> list[Shape]:
    """Return shapes of other resources' bodies, and ways to send one."""
    short = _object(_ASKED)
    return [
        Shape("/tokenize", "/tokenize", filled(b'{"content":"', b"word ", b'"}', size, comma=b"")),
        Shape("/tokenize of parts", "/tokenize", filled(b'{"content":[', b'"x"', b"]}", size)),
        Shape("/tokenize of ids", "/tokenize", filled(b'{"content":[', b"1", b"]}", size)),
        Shape(
            "/tokenize with pieces",
            "/tokenize",
            filled(b'{"with_pieces":true,"content":[', b"1", b"]}", size),
        ),
        Shape("/detokenize", "/detokenize", filled(b'{"tokens":[', b"1", b"]}", size)),
        Shape(
            "/apply-template",
            "/apply-template",
            filled(b'{"messages":[', b'{"role":"tool","content":"x"}', b"]}", size),
        ),
        Shape("a body byte by byte", COMPLETIONS, short[:-1] + b" " * (size // 10) + b"}", 1),
        Shape("a body in small parts", COMPLETIONS, short[:-1] + b" " * (size - 99) + b"}", 16),
    ]


def shared() -> list[Shape]:
    """Return short bodies that ask for much of what all clients share."""
    patterns = [{"type": "string", "pattern": f"^.*a{n}.{{0,{n}}}b.*$"} for n in range(20)]
    schema = {"title": NUMBER, "allOf": patterns}
    bodies: dict[str, Json] = {
        "a slow schema": {"prompt": "x", "max_tokens": 1, "json_schema": schema},
        "eight long answers": {"prompt": "x", "n": 8, "max_tokens": 128},
        "eight short answers": {"prompt": "x", "n": 8, "max_tokens": 16},
        "128 long answers": {"prompt": ["x"] * 128, "max_tokens": 128},
        "a long answer": {"prompt": "x", "max_tokens": 512},
    }
    return [Shape(name, COMPLETIONS, _object(body)) for name, body in bodies.items()]


def all_shapes() -> list[Shape]:
    """Return all of them."""
    return [*completions(), *chats(), *responses(), *others(), *shared()]
