"""PROTOCOL.md says what the code does: its tables are compared, its examples executed."""

import ast
import json
import re
from contextlib import nullcontext
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

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
    "[[u32, number]]": [[1, 0.5]],
}


def section(title):
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found[1]


def table(text):
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return rows[2:]


def field_rows(name):
    """Name, type and default of each field of a control message: a row may name several, or be as elsewhere."""
    for titles, kind, default, _ in table(section(name)):
        other = {title: rest for title, *rest in field_rows(kind)} if kind in CONTROL else {}
        for title in titles.split(", "):
            yield title, *other.get(title, (kind, default))


def option_rows():
    """Name, type, default and limits of each of OPEN's options: a row may name several, of the same default or not."""
    for names, kind, default, limits in table(section("Options")):
        titles, defaults = names.split(", "), default.split(", ")
        for title, value in zip(
            titles, defaults if len(defaults) > 1 else defaults * len(titles), strict=True
        ):
            yield pytest.param(title, kind, json.loads(value), limits, id=title)


def within(limits):
    """The least and the largest value that a row of numbers names."""
    least, largest = re.search(r"(-?[\d.e-]+) to (-?[\d.e]+)", limits).groups()
    return float(least), float(largest)


def refused(options):
    with pytest.raises(RequestError) as caught:
        wire_params(options)
    return caught.value.param


def examples():
    pairs = re.findall(
        r"```hex\n(.*?)```\n\n```python\n(.*?)```", section("9. Examples"), re.DOTALL
    )
    return [
        pytest.param(bytes.fromhex(raw), meaning.strip(), id=meaning.split("(")[0])
        for raw, meaning in pairs
    ]


def test_version_is_the_codes():
    assert f"| Protocol version | {m.PROTOCOL_VERSION} |" in TEXT
    assert f"describes version {m.PROTOCOL_VERSION}." in section("8. Versions")


def test_header_table_is_the_struct():
    """Offsets, sizes and types of the header table are those of the struct that packs it, without gaps."""
    codes = {"bytes": "2s", "u8": "B", "u16": "H", "u32": "I"}
    rows = table(section("3. Frame"))
    end = 0
    for offset, size, *_ in rows:
        assert int(offset) == end
        end += int(size)
    assert end == codec.HEADER.size == 20
    assert "<" + "".join(codes[row[3]] for row in rows) == codec.HEADER.format


def test_limits_are_the_codes():
    limits = {name.strip("`"): int(value) for name, value, _ in table(section("Limits"))}
    assert limits == {
        "MAX_TOKENS": m.MAX_TOKENS,
        "MAX_SUPPORT": m.MAX_SUPPORT,
        "MAX_BODY": m.MAX_BODY,
        "MAX_NAME": codec.MAX_NAME,
        "MAX_DEPTH": codec.MAX_DEPTH,
    }
    assert f"longer than {codec.MAX_FRAME} bytes" in section("2. Topology").replace("\n", " ")


def test_kind_table_is_the_enum():
    rows = table(section("4. Messages"))
    assert {name: int(kind) for kind, name, _ in rows} == {kind.name: int(kind) for kind in m.Kind}
    assert {name for kind, name, _ in rows if int(kind) >= 16} == set(CONTROL)


def test_every_token_message_is_described():
    described = re.findall(r"^\*\*([A-Z_]+)\*\*:", section("5. Token plane"), re.MULTILINE)
    assert [name.replace("_", "") for name in described] == [
        cls.__name__.upper() for cls in get_args(m.TokenMessage)
    ]


@pytest.mark.parametrize("name", CONTROL)
def test_field_table_is_the_dataclass(name):
    hints = get_type_hints(CONTROL[name])
    known = {field.name: field for field in fields(CONTROL[name])}
    empty = CONTROL[name](**{title: hints[title]() for title in known})
    rows = list(field_rows(name))
    assert sorted(row[0] for row in rows) == sorted(known)
    for title, kind, default in rows:
        field = known[title]
        assert kind == TYPES[hints[title]] or (kind, hints[title]) == ("text", str), title
        if hints[title] is str:
            with nullcontext() if kind == "text" else pytest.raises(ValueError, match=title):
                codec.encode_body(replace(empty, **{title: "x" * (codec.MAX_NAME + 1)}))
        if field.default is not MISSING:
            assert ast.literal_eval(default.capitalize()) == field.default
        elif field.default_factory is not MISSING:
            assert ast.literal_eval(default) == field.default_factory()
        else:
            assert default == "", title


def test_each_type_of_a_table_is_explained():
    control = section("6. Control plane")
    explained = re.search(r"^Types: .*?\n\n", control, re.MULTILINE | re.DOTALL)
    rows = [
        *(kind for name in CONTROL for _, kind, _ in field_rows(name)),
        *(row.values[1] for row in option_rows()),
    ]
    assert {one for kind in rows for one in re.findall(r"\w+", kind)} == set(
        re.findall(r"\*(\w+)\*", explained[0])
    )


def test_options_are_those_of_a_session():
    assert sorted(row.id for row in option_rows()) == sorted(wire_params({}).named())


@pytest.mark.parametrize(("name", "kind", "default", "limits"), list(option_rows()))
def test_option_table_is_what_a_session_takes(name, kind, default, limits):
    """A default is what a missing option and null are; the limits are taken, and what is beyond them is refused."""
    assert wire_params({}).named()[name] == wire_params({name: None}).named()[name] == default
    wire_params({name: OPTIONS[kind] if kind != "text" else default})
    assert refused({name: {"integer": 0.5, "number": True}.get(kind, 1)}) == name
    if kind in ("integer", "number"):
        least, largest = within(limits)
        step = 1 if kind == "integer" else abs(least or largest) / 100
        for value in (least, largest):
            assert wire_params({name: value}).named()[name] in (
                value,
                max(value, 0),
            )  # a `top_k` of -1 is 0
        assert refused({name: least - step}) == refused({name: largest + step}) == name


def test_limits_of_lists_are_what_a_session_takes():
    rows = {row.id: row.values[3] for row in option_rows()}
    count, length, together = map(int, re.findall(r"\d+", rows["stop"]))
    longest = ["x" * length] * (together // length)
    assert len(wire_params({"stop": longest}).stop) == len(longest)
    assert len(wire_params({"stop": ["x"] * count}).stop) == count
    for wrong in (["x" * (length + 1)], ["x"] * (count + 1), [*longest, "x"]):
        assert refused({"stop": wrong}) == "stop"
    count, (_, largest) = int(rows["logit_bias"].split()[0]), within(rows["logit_bias"])
    for bias in within(rows["logit_bias"]):
        assert len(wire_params({"logit_bias": [[1, bias]] * count}).sampling.logit_bias) == count
        assert refused({"logit_bias": [[1, bias * 2]]}) == "logit_bias"
    assert refused({"logit_bias": [[1, largest]] * (count + 1)}) == "logit_bias"
    assert re.findall(r"`(\w+)`", rows["grammar_kind"]) == list(GrammarKind)


def test_reasons_are_the_errors():
    reasons = [reason for reason, _ in table(section("What is refused"))]
    assert FrameError.__doc__
    *first, last = reasons
    assert f"{', '.join(first)} or {last}" in FrameError.__doc__


def test_finish_reasons_are_the_enum():
    described = {name: meaning for name, *_, meaning in table(section("DONE"))}["finish_reason"]
    assert re.findall(r"[a-z]+", described.replace(" or ", " ")) == list(m.FinishReason)


def test_error_codes_are_the_messages():
    described = table(section("ERROR"))[0][3]
    assert m.Error.__doc__
    codes = re.search(r"one of ([a-z, ]+);", m.Error.__doc__)[1].split(", ")
    assert re.findall(r"[a-z]+", described.replace(" or ", " ")) == codes


@pytest.mark.parametrize(("raw", "meaning"), examples())
def test_example(raw, meaning):
    """The bytes of an example decode to what stands below them, and are what encoding that gives."""
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
