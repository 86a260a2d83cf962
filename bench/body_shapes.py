"""Bodies of 2 MiB that ask for much, which `bodies.py` sends.

A template has the part of a body that is repeated between « and »: `[«1,»]` becomes `[1,1,1]`. A
comma at its end stands between two repetitions only; # is the number of a repetition.
"""

import json
from dataclasses import dataclass

SIZE = 2 * 1024 * 1024
"""Bytes that the API takes at most."""

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
NUMBER = "@" * 8
"""Stands for a number in a body that is never sent twice."""

Json = dict[str, object]

_ASKED = {"prompt": "x", "max_tokens": 1}
_DEEP = "[" * 400 + "]" * 400
_LONG_NUMBER = "1" * 4000
_ID = "cmpl-" + "0" * 32
_COMPLETIONS = {
    "a text of one letter": '{"max_tokens":1,"prompt":"«x»"}',
    "a text of blanks": '{"max_tokens":1,"prompt":"« »"}',
    "a text of words": '{"max_tokens":1,"prompt":"«to be or »"}',
    "a text of escapes": r'{"max_tokens":1,"prompt":"«\u00e9\n»"}',
    "a text of emojis": '{"max_tokens":1,"prompt":"«\N{GRINNING FACE}»"}',
    "a prompt of ids": '{"max_tokens":1,"prompt":[«1,»]}',
    "prompts without end": '{"max_tokens":1,"prompt":[«"",»]}',
    "empty lists as prompts": '{"max_tokens":1,"prompt":[«[],»]}',
    "prompts of one id": '{"max_tokens":1,"prompt":[«[1],»]}',
    "a wrong id at the end": '{"max_tokens":1,"prompt":[«1,»,"x"]}',
    "stops": '{"prompt":"x","max_tokens":1,"stop":[«"a",»]}',
    "logit_bias as pairs": '{"prompt":"x","max_tokens":1,"logit_bias":[«[1,1],»]}',
    "logit_bias by id": '{"prompt":"x","max_tokens":1,"logit_bias":{«"#":1,»}}',
    "a resumed text": '{"resume":{"id":"' + _ID + '","prompt_token_ids":[1],"token_ids":[«1,»]}}',
    "unknown fields": '{"prompt":"x","max_tokens":1,«"u#":1,»}',
    "an unknown field of empty lists": '{"prompt":"x","max_tokens":1,"u":[«[],»]}',
    "an unknown field of floats": '{"prompt":"x","max_tokens":1,"u":[«1.5,»]}',
    "an unknown field of long numbers": '{"prompt":"x","u":[«' + _LONG_NUMBER + ",»]}",
    "an unknown field of objects": '{"prompt":"x","max_tokens":1,"u":[«{"a":1},»]}',
    "deep lists side by side": '{"prompt":"x","max_tokens":1,"u":[«' + _DEEP + ",»]}",
    "the same field again": '{«"prompt":"x",»}',
    "a long grammar": '{"prompt":"x","max_tokens":1,"grammar":"root ::= «[a] »"}',
    "a schema of many properties": '{"prompt":"x","max_tokens":1,'
    '"json_schema":{"type":"object","properties":{«"p#":{},»}}}',
    "stream options": '{"prompt":"x","max_tokens":1,"stream_options":{«"u#":1,»}}',
    "brackets that never close": '{"max_tokens":1,"prompt":«[»',
    "no JSON at its end": '{"max_tokens":1,"prompt":[«1,»]',
    "no JSON": "«x»",
}
_CHATS = {
    "tool messages": '{"max_tokens":1,"messages":['
    '«{"role":"tool","tool_call_id":"c","content":"x"},»]}',
    "turns": '{"max_tokens":1,"messages":[«{"role":"user","content":"x"},'
    '{"role":"assistant","content":"x"},»]}',
    "system messages": '{"max_tokens":1,"messages":[«{"role":"system","content":""},»]}',
    "empty messages": '{"max_tokens":1,"messages":[«{"role":"a","content":""},»]}',
    "messages that are none": '{"max_tokens":1,"messages":[«1,»]}',
    "one long message": '{"max_tokens":1,"messages":[{"role":"user","content":"«word »"}]}',
    "content parts": '{"max_tokens":1,"messages":[{"role":"user","content":['
    '«{"type":"text","text":"x"},»]}]}',
    "calls in one message": '{"max_tokens":1,"messages":[{"role":"assistant","tool_calls":['
    '«{"id":"c#","type":"function","function":{"name":"f","arguments":"{}"}},»]}]}',
    "a call with a text of long arguments": '{"max_tokens":1,"messages":[{"role":"assistant",'
    r'"tool_calls":[{"function":{"name":"f","arguments":"{\"a\":[«1,»]}"}}]}]}',
    "a call with long arguments": '{"max_tokens":1,"messages":[{"role":"assistant",'
    '"tool_calls":[{"function":{"name":"f","arguments":{"a":[«[],»]}}}]}]}',
    "unknown fields of a message": '{"max_tokens":1,"messages":['
    '{"role":"user","content":"x","u":{«"u#":1,»}}]}',
    "tools": '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"tools":['
    '«{"type":"function","function":{"name":"f"}},»]}',
    "tools that are not to be called": '{"messages":[{"role":"user","content":"x"}],'
    '"max_tokens":1,"tool_choice":"none","tools":[«{"type":"function","function":{"name":"f"}},»]}',
    "tools of other kinds": '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,'
    '"tools":[«{"type":"web_search"},»]}',
    "template variables": '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,'
    '"chat_template_kwargs":{«"u#":1,»}}',
    "a template variable of lists": '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,'
    '"chat_template_kwargs":{"u":[«[],»]}}',
    "eight answers to a long chat": '{"n":8,"max_tokens":1,"messages":['
    '«{"role":"user","content":"x"},{"role":"assistant","content":"x"},»]}',
    "a schema as response_format": '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,'
    '"response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{'
    '«"p#":{},»}}}}}',
}
_RESPONSES = {
    "function calls": '{"max_output_tokens":1,"input":['
    '«{"type":"function_call","call_id":"c#","name":"f","arguments":"{}"},»]}',
    "outputs of calls": '{"max_output_tokens":1,"input":['
    '«{"type":"function_call_output","call_id":"c","output":"x"},»]}',
    "thoughts": '{"max_output_tokens":1,"input":['
    '«{"type":"reasoning","summary":[{"type":"summary_text","text":"x"}]},»]}',
    "items": '{"max_output_tokens":1,"input":['
    '«{"role":"user","content":"x"},{"role":"assistant","content":"x"},»]}',
    "developer items": '{"max_output_tokens":1,"input":[«{"role":"developer","content":"x"},»]}',
    "items of other tools": '{"max_output_tokens":1,"input":['
    '«{"type":"web_search_call","status":"completed"},»]}',
    "parts of an item": '{"max_output_tokens":1,"input":[{"role":"user","content":['
    '«{"type":"input_text","text":"x"},»]}]}',
    "metadata": '{"input":"x","max_output_tokens":1,"metadata":{«"m#":"",»}}',
    "metadata of lists": '{"input":"x","max_output_tokens":1,"metadata":{"m":[«[],»]}}',
    "unknown fields of a text": '{"input":"x","max_output_tokens":1,"text":{«"u#":1,»}}',
    "a list to include": '{"input":"x","max_output_tokens":1,"include":[«"a",»]}',
    "tools of a response": '{"input":"x","max_output_tokens":1,"tool_choice":"none","tools":['
    '«{"type":"function","name":"f"},»]}',
    "long instructions": '{"input":"x","max_output_tokens":1,"instructions":"«word »"}',
}
_OTHERS = {
    "/tokenize": '{"content":"«word »"}',
    "/tokenize of parts": '{"content":[«"x",»]}',
    "/tokenize of ids": '{"content":[«1,»]}',
    "/tokenize with pieces": '{"with_pieces":true,"content":[«1,»]}',
    "/detokenize": '{"tokens":[«1,»]}',
    "/apply-template": '{"messages":[«{"role":"tool","content":"x"},»]}',
}
_RESUMED_WITH_GRAMMAR = (
    '{"grammar":"root ::= .*","resume":{"id":"'
    + _ID
    + '","prompt_token_ids":[1],"token_ids":[«66,»]}}'
)
_MOST_RESUMED = 24_000
"""Bytes of that body which a common context can hold."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A request's path and body. chunk: bytes of each part of the body, 0 for a body in one."""

    name: str
    path: str
    body: bytes
    chunk: int = 0


def body_of(template: str, size: int) -> bytes:
    """Return a template's body with as many repetitions as fit into `size` bytes."""
    before, _, rest = template.partition("«")
    unit, _, after = rest.partition("»")
    comma = b""
    if unit.endswith(","):
        unit = unit[:-1]
        comma = b","
    room = size - len(before.encode()) - len(after.encode())
    parts: list[bytes] = []
    if "#" not in unit:
        part = unit.encode()
        parts = [part] * max((room + len(comma)) // len(part + comma), 1)
    while "#" in unit:
        part = unit.replace("#", str(len(parts))).encode()
        room -= len(part + comma)
        if room < 0:
            break
        parts.append(part)
    return before.encode() + comma.join(parts) + after.encode()


def shapes_of(templates: dict[str, str], path: str, size: int) -> list[Shape]:
    """Return the shapes of templates."""
    shapes: list[Shape] = []
    for name, text in templates.items():
        shapes.append(Shape(name, path, body_of(text, size)))
    return shapes


def completions(size: int = SIZE) -> list[Shape]:
    """Return shapes of a completion's body."""
    words = "word " * (size // 655)
    prompts = '{"max_tokens":1,"prompt":[«"' + words + '",»]}'
    resumed = body_of(_RESUMED_WITH_GRAMMAR, min(size, _MOST_RESUMED))
    shapes = shapes_of(_COMPLETIONS | {"128 prompts": prompts}, COMPLETIONS, size)
    shapes.append(Shape("a resumed text with a grammar", COMPLETIONS, resumed))
    return shapes


def chats(size: int = SIZE) -> list[Shape]:
    """Return shapes of a chat's body."""
    return shapes_of(_CHATS, CHAT, size)


def responses(size: int = SIZE) -> list[Shape]:
    """Return shapes of the body of a response."""
    return shapes_of(_RESPONSES, RESPONSES, size)


def others(size: int = SIZE) -> list[Shape]:
    """Return shapes of other resources' bodies, and ways to send one."""
    short = _object(_ASKED)
    by_byte = short[:-1] + b" " * (size // 10) + b"}"
    in_parts = short[:-1] + b" " * (size - 99) + b"}"
    shapes = [
        Shape("a body byte by byte", COMPLETIONS, by_byte, 1),
        Shape("a body in small parts", COMPLETIONS, in_parts, 16),
    ]
    for name, text in _OTHERS.items():
        shapes.append(Shape(name, name.split()[0], body_of(text, size)))
    return shapes


def _object(value: object) -> bytes:
    return json.dumps(value).encode()


def shared() -> list[Shape]:
    """Return short bodies that ask for much of what all clients share."""
    patterns: list[Json] = []
    for n in range(20):
        patterns.append({"type": "string", "pattern": f"^.*a{n}.{{0,{n}}}b.*$"})
    schema = {"title": NUMBER, "allOf": patterns}
    bodies: dict[str, Json] = {
        "a slow schema": {"prompt": "x", "max_tokens": 1, "json_schema": schema},
        "eight long answers": {"prompt": "x", "n": 8, "max_tokens": 128},
        "eight short answers": {"prompt": "x", "n": 8, "max_tokens": 16},
        "128 long answers": {"prompt": ["x"] * 128, "max_tokens": 128},
        "a long answer": {"prompt": "x", "max_tokens": 512},
    }
    shapes: list[Shape] = []
    for name, body in bodies.items():
        shapes.append(Shape(name, COMPLETIONS, _object(body)))
    return shapes


def all_shapes() -> list[Shape]:
    """Return all of them."""
    return [*completions(), *chats(), *responses(), *others(), *shared()]
