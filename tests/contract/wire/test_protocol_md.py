"""PROTOCOL.md says what the code does: its tables are compared, its examples executed."""

import ast
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from specmesh.errors import FrameError
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


def section(title):
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found[1]


def table(text):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def field_rows(name):
    """Name, type and default of each field of a control message: a row may name several, or be as elsewhere."""
    for titles, kind, default, _ in table(section(name)):
        other = {title: rest for title, *rest in field_rows(kind)} if kind in CONTROL else {}
        for title in titles.split(", "):
            yield title, *other.get(title, (kind, default))


def examples():
    pairs = re.findall(r"```hex\n(.*?)```\n\n```python\n(.*?)```", section("9. Examples"), re.DOTALL)
    return [pytest.param(bytes.fromhex(raw), meaning.strip(), id=meaning.split("(")[0]) for raw, meaning in pairs]


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
    assert [name.replace("_", "") for name in described] == [cls.__name__.upper() for cls in get_args(m.TokenMessage)]


@pytest.mark.parametrize("name", CONTROL)
def test_field_table_is_the_dataclass(name):
    hints = get_type_hints(CONTROL[name])
    rows, known = list(field_rows(name)), {field.name: field for field in fields(CONTROL[name])}
    assert sorted(row[0] for row in rows) == sorted(known)
    for title, kind, default in rows:
        field = known[title]
        expected = "text" if title in codec._LONG_TEXT else TYPES[hints[title]]
        assert kind == expected, title
        if field.default is not MISSING:
            assert ast.literal_eval(default.capitalize()) == field.default
        elif field.default_factory is not MISSING:
            assert ast.literal_eval(default) == field.default_factory()
        else:
            assert default == "", title


def test_reasons_are_the_errors():
    reasons = [reason for reason, _ in table(section("What is refused"))]
    assert FrameError.__doc__
    assert f"one of {', '.join(reasons)} and" in " ".join(FrameError.__doc__.split())


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
