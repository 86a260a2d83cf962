"""What the documents say exists: commands, flags, variables, targets, links, tables."""

import ast
import json
import re
import shlex
from dataclasses import fields, is_dataclass
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens

import cli_reference
import click
import pytest

from specmesh import errors
from specmesh.cli import INTERRUPTED, NOT_WRITTEN, SYSTEM_REFUSED, main
from specmesh.daemons.runtime.process import STUCK
from specmesh.wire import messages

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("bench", "findings", "fuzz", "soak")),
    ROOT / "bench" / "RESULTS.md",
    ROOT / "wire" / "PROTOCOL.md",
]
USAGE, HTTP_API, OPERATIONS = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("usage", "http-api", "operations")
)
MODULES = sorted(
    path for folder in ("specmesh", "wire", "daemons") for path in (ROOT / folder).rglob("*.py")
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
GENERATED = [ROOT / "docs" / name for name in ("cli.md", "faults.md")]
TARGETS = set(
    re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
documents = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def shell_lines(text):
    """The command lines of the sh blocks, continuations joined."""
    blocks = [body for language, body in FENCED.findall(text) if language == "sh"]
    return [line for body in blocks for line in body.replace("\\\n", " ").splitlines() if line]


def prose(text):
    """A document without its code blocks."""
    return FENCED.sub("", text)


def commands(text):
    """`specmesh ...` as shown in blocks, and in backticks where it is more than a name: words without redirections."""
    shown = [line for line in shell_lines(text) if line.startswith("specmesh ")]
    shown += re.findall(r"`(specmesh [^`]+)`", prose(text))
    return [
        [word for word in shlex.split(re.split(r"[<>|]", line)[0], comments=True) if word != "..."]
        for line in shown
    ]


def section(text, title):
    """The lines below a heading, until the next one of its level or above."""
    level = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert level, f"no heading {title!r}"
    rest = text[level.end() :]
    end = re.search(rf"^#{{1,{len(level[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def anchors(text):
    """The fragments that a document's headings answer to."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def flags(command):
    """Every spelling of a command's options, those of its subcommands too."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    own = {flag for param in options for flag in (*param.opts, *param.secondary_opts)} | {"--help"}
    return (
        own.union(*map(flags, command.commands.values()))
        if isinstance(command, click.Group)
        else own
    )


@documents
def test_commands_parse(path):
    for _, *shown in commands(path.read_text(encoding="utf-8")):
        grouped = len(shown) > 1 and isinstance(main.commands.get(shown[0]), click.Group)
        words = shown[1:] if grouped else shown
        if words[0].startswith("-"):
            assert words[0] in {flag for param in main.params for flag in param.opts}
            continue
        group = main if words is shown else main.commands[shown[0]]
        command = group.commands[words[0]]
        used = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
        assert set(used) <= flags(command), words
        options = [
            param
            for param in command.params
            if isinstance(param, click.Option) and not param.is_flag
        ]
        if used and words[-1] == used[-1] and any(used[-1] in param.opts for param in options):
            continue  # an option named in a sentence, without its value
        if "--config" in used:
            continue  # a file of the reader's own
        if words[0] == "generate" or len(words) > 1:
            prompt = ["x"] if words[0] == "generate" and len(words) == 1 else []
            command.make_context(words[0], [*words[1:], *prompt])


@documents
def test_flags_in_sentences_exist(path):
    known = {flag for command in main.commands.values() for flag in flags(command)} | set(
        main.params[0].opts
    )
    shown = set(re.findall(r"`(--[a-z-]+)", prose(path.read_text(encoding="utf-8"))))
    assert shown <= known


@documents
def test_make_targets_exist(path):
    text = path.read_text(encoding="utf-8")
    shown = {line.split()[1] for line in shell_lines(text) if line.startswith("make ")}
    assert shown | set(re.findall(r"`make ([a-z]+)", text)) <= TARGETS


@documents
def test_links_resolve(path):
    text = path.read_text(encoding="utf-8")
    for link in LINK.findall(prose(text)):
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, fragment = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        if fragment:
            assert fragment in anchors(target.read_text(encoding="utf-8")), link


RETIRED = re.compile(
    r"\b(benched|by the clock|casting|contests?|corrections?|crowds?|doorkeeper|laws?|lobby|outlook|pictures?|rasch"
    r"|rescue[ds]?|seats|seconded|shadow(?:s|ed)?|side chains?|stand(?:s|ing)? by|standby|telling|told|usefulness"
    r"|walks?)\b"
)


@documents
def test_words_are_the_fields(path):
    """No private word where the field has a term: what ARCHITECTURE's glossary has is said by these terms."""
    text = re.sub(r"`[^`]*`", "", prose(path.read_text(encoding="utf-8")))
    assert path in GENERATED or RETIRED.findall(text) == []


def test_words_of_help_statistics_and_wire_are_the_fields():
    """Help of each option, keys and metrics, kinds and fields of frames, what the golden vectors are called."""
    golden = [
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests/contract/golden").glob("*.json"))
    ]
    frames = [one for one in vars(messages).values() if is_dataclass(one)]
    names = [kind.name.lower() for kind in messages.Kind] + [
        field.name for one in frames for field in fields(one)
    ]
    vectors = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "wire/vectors").glob("*.json"))
    ]
    names += [
        text
        for one in vectors
        for text in (one["about"], *(vector["name"] for vector in one["vectors"]))
    ]
    said = [(ROOT / "docs/cli.md").read_text(encoding="utf-8"), *golden, *names]
    assert [
        word for text in said for word in RETIRED.findall(re.sub(r"[_.\[\]]+", " ", text.lower()))
    ] == []


def apart(text):
    """The words that names and comments are made of."""
    return re.sub(r"[#_\s]+|(?<=[a-z])(?=[A-Z])", " ", text).lower()


def test_words_of_the_code_are_the_fields():
    """Every name that the product's modules give, their docstrings and comments."""
    found = list[str]()
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        if not RETIRED.search(apart(source)):
            continue
        comments = [
            part.string
            for part in generate_tokens(StringIO(source).readline)
            if part.type == COMMENT
        ]
        found += [f"{path.name}: {word}" for word in RETIRED.findall(apart(" ".join(comments)))]
        for node in ast.walk(ast.parse(source)):
            given = not isinstance(node, ast.Name | ast.Attribute) or isinstance(
                node.ctx, ast.Store
            )
            said = [
                getattr(node, name, None)
                for name in ("name", "asname", "arg", "id", "attr")
                if given
            ]
            said += [ast.get_docstring(node)] if isinstance(node, DOCUMENTED) else []
            words = RETIRED.findall(apart(" ".join(filter(None, said))))
            found += [f"{path.name}:{getattr(node, 'lineno', 1)} {word}" for word in words]
    assert found == []


def test_a_name_means_one_thing():
    """No public constant or class of the product has the name of another module's."""
    homes = dict[str, set[str]]()
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            named = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign | ast.AnnAssign):
                stored = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
                named = [
                    part.id
                    for part in stored
                    if isinstance(part.ctx, ast.Store) and part.id.isupper()
                ]
            for name in named:
                homes.setdefault(name, set()).add(str(path))
    assert {name for name, found in homes.items() if len(found) > 1 and name[0] != "_"} == {
        "T"
    }  # a type variable


def test_promises_are_shown_by_tests_that_exist():
    """Each row of SECURITY's table of promises names tests, and they are there."""
    table = section((ROOT / "SECURITY.md").read_text(encoding="utf-8"), "Tests that show it")
    rows = re.findall(r"^\| (?!promise)[^|]+ \| (.+) \|$", table, re.MULTILINE)
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert len(named) == row.count("`") // 2 > 0, row
        for file, name in named:
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{file}::{name}"


def test_exit_codes_are_those_left_with():
    """The exit codes are those of our errors, and what click and the shell add."""
    told = set(
        map(int, re.findall(r"^\| (\d+) \|", section(OPERATIONS, "Exit codes"), re.MULTILINE))
    )
    ours = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.SpecmeshError)
    ]
    others = {0, click.UsageError.exit_code, STUCK, SYSTEM_REFUSED, NOT_WRITTEN, INTERRUPTED}
    assert told == {cls.exit_code for cls in ours} | others


def test_cli_reference_is_current():
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == cli_reference.reference(), (
        "run `make docs`"
    )


def test_every_option_is_explained():
    silent = []
    for name, command in main.commands.items():
        for each in command.commands.values() if isinstance(command, click.Group) else [command]:
            options = [
                one for one in each.params if isinstance(one, click.Option) and not one.hidden
            ]
            silent += [f"{name} {one.opts[0]}" for one in options if not one.help]
    assert silent == []
