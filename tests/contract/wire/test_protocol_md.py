"""PROTOCOL.md agrees with the code: its tables are compared, its examples executed."""

import ast
import json
import re
from dataclasses import MISSING, fields
from itertools import chain
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from specmesh.core.draft_sources import DRAFT_SOURCES
from specmesh.core.sampling.constraint import GrammarKind
from specmesh.core.session_params import wire_params
from specmesh.errors import FrameError, RequestError
from specmesh.wire import codec
from specmesh.wire import messages as m

TEXT = (Path(__file__).parents[3] / "wire" / "PROTOCOL.md").read_text(encoding="utf-8")
MESSAGES = {cls.__name__: cls for cls in get_args(m.Message)}
CONTROL = {cls.__name__.upper(): cls for cls in get_args(m.ControlMessage)}
TYPES = {
    int: "u32",
    float: "number",
    str: "name",
    bool: "flag",
    list[int]: "[u32]",
    list[float]: "[number]",
    list[str]: "[text]",
    dict[str, object]: "object",
    list[dict[str, object]]: "[object]",
}

OPTIONS = {
    "integer": 1,
    "number": 0.5,
    "flag": True,
    "[text]": ["x"],
    "draft_sources": ["suffix"],
    "[[u32, number]]": [[1, 0.5]],
}


def section(title):
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found[1]


def table(title):
    """Return the rows of a section's table, without its head."""
    lines = re.findall(r"^\|(.*)\|$", section(title), re.MULTILINE)
    return [re.split(r"\s*\|\s*", line.strip()) for line in lines[2:]]


def field_rows(name):
    """Yield name, type and default of each field of a control message.

    A row may name several fields, or another message that has the same ones.
    """
    for titles, kind, default, _ in table(name):
        names = titles.split(", ")
        if kind in CONTROL:
            yield from (row for row in field_rows(kind) if row[0] in names)
            continue
        for title in names:
            yield title, kind, default


def option_rows():
    """Yield name, type, default and limits of each of OPEN's options.

    A row may name several options, which have one default or one each.
    """
    for names, kind, default, limits in table("Options"):
        titles = names.split(", ")
        defaults = default.split(", ")
        if len(defaults) == 1:
            defaults *= len(titles)
        for title, value in zip(titles, defaults, strict=True):
            yield title, kind, json.loads(value), limits


def within(limits):
    """Return the least and the largest value in a row of numbers."""
    least, largest = re.search(r"(-?[\d.e-]+) to (-?[\d.e]+)", limits).groups()
    return float(least), float(largest)


def refused(options):
    with pytest.raises(RequestError) as caught:
        wire_params(options)
    return caught.value.param


def examples():
    pattern = r"```hex\n(.*?)```\n\n```python\n(.*?)```"
    for raw, meaning in re.findall(pattern, section("9. Examples"), re.DOTALL):
        yield pytest.param(bytes.fromhex(raw), meaning.strip(), id=meaning.split("(")[0])


def test_version_is_the_codes():
    assert f"| Protocol version | {m.PROTOCOL_VERSION} |" in TEXT
    assert f"describes version {m.PROTOCOL_VERSION}." in section("8. Versions")


def test_header_table_is_the_struct():
    codes = {"bytes": "2s", "u8": "B", "u16": "H", "u32": "I"}
    end = 0
    format_ = "<"
    for offset, size, _, kind, *_ in table("3. Frame"):
        assert int(offset) == end
        end += int(size)
        format_ += codes[kind]
    assert end == 20
    assert format_ == codec.HEADER.format


def test_limits_are_the_codes():
    limits = {name.strip("`"): int(value) for name, value, _ in table("Limits")}
    assert limits == {
        "MAX_TOKENS": m.MAX_TOKENS,
        "MAX_ACCEPTED": m.MAX_ACCEPTED,
        "MAX_SUPPORT": m.MAX_SUPPORT,
        "MAX_BODY": m.MAX_BODY,
        "MAX_PIECE": m.MAX_PIECE,
        "MAX_OPEN_BODY": m.MAX_OPEN_BODY,
        "MAX_NAME": codec.MAX_NAME,
        "MAX_DEPTH": codec.MAX_DEPTH,
    }
    assert f"longer than {codec.MAX_FRAME} bytes" in section("2. Topology").replace("\n", " ")


def test_kind_table_is_the_enum():
    kinds = {name: int(kind) for kind, name, _ in table("4. Messages")}
    assert kinds == {kind.name: int(kind) for kind in m.Kind}
    assert {name for name, kind in kinds.items() if kind >= 16} == set(CONTROL)


def test_every_token_message_is_described():
    described = re.findall(r"^\*\*([A-Z_]+)\*\*:", section("5. Token plane"), re.MULTILINE)
    names = [cls.__name__.upper() for cls in get_args(m.TokenMessage)]
    assert "".join(described).replace("_", "") == "".join(names)


@pytest.mark.parametrize("name", CONTROL)
def test_field_table_is_the_dataclass(name):
    hints = get_type_hints(CONTROL[name])
    known = {field.name: field for field in fields(CONTROL[name])}
    rows = list(field_rows(name))
    assert sorted(row[0] for row in rows) == sorted(known)
    for title, kind, default in rows:
        field = known[title]
        described = "name" if kind == "text" else kind
        assert described == TYPES[hints[title]], title
        if field.default is not MISSING:
            assert ast.literal_eval(default.capitalize()) == field.default
        elif field.default_factory is not MISSING:
            assert ast.literal_eval(default) == field.default_factory()
        else:
            assert default == "", title


@pytest.mark.parametrize("name", CONTROL)
def test_only_texts_are_longer_than_names(name):
    cls = CONTROL[name]
    hints = get_type_hints(cls)
    empty = {field.name: hints[field.name]() for field in fields(cls)}
    for title, kind, _ in field_rows(name):
        long = empty | {title: "x" * (codec.MAX_NAME + 1)}
        if kind == "text":
            codec.encode_body(cls(**long))
        elif kind == "name":
            with pytest.raises(ValueError, match=title):
                codec.encode_body(cls(**long))


def test_each_type_of_a_table_is_explained():
    control = section("6. Control plane")
    explained = re.search(r"^Types: .*?\n\n", control, re.MULTILINE | re.DOTALL)
    words = set[str]()
    for _, kind, *_ in (*ROWS, *chain.from_iterable(map(field_rows, CONTROL))):
        words.update(re.findall(r"\w+", kind))
    assert words == set(re.findall(r"\*(\w+)\*", explained[0]))


ROWS = list(option_rows())
LIMITS = {name: limits for name, _, _, limits in ROWS}
BOUNDED = [row for row in ROWS if row[1] in ("integer", "number")]


def test_options_are_those_of_a_session():
    assert LIMITS.keys() == wire_params({}).named().keys()


@pytest.mark.parametrize(("name", "kind", "default", "limits"), ROWS)
def test_an_option(name, kind, default, limits):
    """Missing and null it is the default, and other types are refused."""
    assert wire_params({}).named()[name] == default
    assert wire_params({name: None}).named()[name] == default
    wire_params({name: OPTIONS.get(name, OPTIONS.get(kind, default))})
    wrong = {"integer": 0.5, "number": True}.get(kind, 1)
    assert refused({name: wrong}) == name


@pytest.mark.parametrize(("name", "kind", "default", "limits"), BOUNDED)
def test_limits_of_an_option_are_what_a_session_takes(name, kind, default, limits):
    least, largest = within(limits)
    step = 1 if kind == "integer" else abs(least or largest) / 100
    for value in (least, largest):
        taken = wire_params({name: value}).named()[name]
        assert taken in (value, max(value, 0))  # a `top_k` of -1 is 0
    assert refused({name: least - step}) == name
    assert refused({name: largest + step}) == name


def test_limits_of_stop_strings():
    count, length, together = map(int, re.findall(r"\d+", LIMITS["stop"]))
    longest = ["x" * length] * (together // length)
    for right in (longest, ["x"] * count):
        assert len(wire_params({"stop": right}).stop) == len(right)
    for wrong in (["x" * (length + 1)], ["x"] * (count + 1), [*longest, "x"]):
        assert refused({"stop": wrong}) == "stop"


def test_limits_of_biases():
    count = int(LIMITS["logit_bias"].split()[0])
    for bias in within(LIMITS["logit_bias"]):
        pairs = [[1, bias]] * count
        assert len(wire_params({"logit_bias": pairs}).sampling.logit_bias) == count
        assert refused({"logit_bias": [[1, bias * 2]]}) == "logit_bias"
        assert refused({"logit_bias": [*pairs, [1, bias]]}) == "logit_bias"


def test_sources_of_drafts():
    assert sorted(re.findall(r"`(\w+)`", LIMITS["draft_sources"])) == sorted(DRAFT_SOURCES)


def test_kinds_of_grammars():
    assert re.findall(r"`(\w+)`", LIMITS["grammar_kind"]) == list(GrammarKind)


def test_reasons_are_the_errors():
    reasons = [row[0] for row in table("What is refused")]
    listed = re.search(r"reason: (.*?)\. ", FrameError.__doc__, re.DOTALL)
    assert words_of(listed[1]) == reasons


def words_of(described):
    return re.findall(r"[a-z]+", described.replace(" or ", " "))


def test_finish_reasons_are_the_enum():
    meanings = {row[0]: row[-1] for row in table("DONE")}
    assert words_of(meanings["finish_reason"]) == list(m.FinishReason)


def test_error_codes_are_the_messages():
    codes = re.search(r"one of ([a-z, ]+);", m.Error.__doc__)
    assert words_of(table("ERROR")[0][3]) == words_of(codes[1])


@pytest.mark.parametrize(("raw", "meaning"), list(examples()))
def test_example(raw, meaning):
    """The bytes decode to the message below them, and that encodes to the bytes."""
    call = ast.parse(meaning, mode="eval").body
    if call.func.id == "FrameError":
        with pytest.raises(FrameError) as caught:
            codec.decode(raw)
        assert (caught.value.reason, caught.value.seen) == tuple(map(ast.literal_eval, call.args))
        return
    values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    message = MESSAGES[call.func.id](**values)
    assert codec.decode(raw) == message
    assert codec.encode(message) == raw
