"""Commands, flags, targets, links and tables of the documents exist."""

import ast
import re
import shlex
from pathlib import Path

import cli_reference
import click
import pytest

from specmesh import errors
from specmesh.cli import INTERRUPTED, NOT_WRITTEN, SYSTEM_REFUSED, main
from specmesh.daemons.runtime.process import STUCK

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("bench", "findings", "fuzz", "soak")),
    ROOT / "bench" / "RESULTS.md",
    ROOT / "wire" / "PROTOCOL.md",
]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def path(request):
    return request.param


@pytest.fixture
def text(path):
    return read(path)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def lines_with(pattern, text):
    """Return all matches of a pattern with ^ and $ at lines."""
    return re.findall(pattern, text, re.MULTILINE)


def shell_lines(text):
    """Return the command lines of the sh blocks, continuations joined."""
    lines = []
    for language, body in FENCED.findall(text):
        if language == "sh":
            lines += filter(None, body.replace("\\\n", " ").splitlines())
    return lines


def prose(text):
    """Return a document without its code blocks."""
    return FENCED.sub("", text)


def commands(text):
    """Yield the words of each `specmesh ...` of blocks and sentences, without redirections."""
    shown = lines_with("^specmesh .*$", "\n".join(shell_lines(text)))
    shown += re.findall(r"`(specmesh [^`]+)`", prose(text))
    for line in shown:
        _, *words = shlex.split(re.split(r"[<>|]", line)[0].replace("...", ""), comments=True)
        yield words


def section(text, title):
    """Return the lines below a heading, until the next one of its level or above."""
    heading = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert heading, f"no heading {title!r}"
    level = len(heading[1])
    return re.split(rf"^#{{1,{level}}} ", text[heading.end() :], flags=re.MULTILINE)[0]


def anchors(text):
    """Return the fragments that a document's headings answer to."""
    titles = lines_with(r"^#+ (.+)$", prose(text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def options(command):
    return [param for param in command.params if isinstance(param, click.Option)]


def flags(command):
    """Return every spelling of a command's options, and of its subcommands' options."""
    found = {"--help"}
    for option in options(command):
        found.update(option.opts, option.secondary_opts)
    for subcommand in subcommands(command).values():
        found |= flags(subcommand)
    return found


def subcommands(command):
    """Return the commands of a group, by name; other commands have none."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    return {name: command.get_command(context, name) for name in command.list_commands(context)}


def found_command(words):
    """Return the command that words name, and the words behind its name."""
    command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = subcommands(command)[words[0]]
        words = words[1:]
    return command, words


def misses_a_value(command, words):
    """Return True for an option that a sentence names without its value."""
    for option in options(command):
        if words[-1] in option.opts:
            return not option.is_flag
    return False


def test_flags_of_commands_exist(text):
    for shown in commands(text):
        command, words = found_command(shown)
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= flags(command), shown


def test_commands_parse(text):
    for shown in commands(text):
        command, words = found_command(shown)
        # The file of --config is the reader's own.
        if not words or "--config" in words or misses_a_value(command, words):
            continue
        command.make_context(command.name, words, resilient_parsing=command is main)


def test_flags_in_sentences_exist(text):
    shown = set(re.findall(r"`(--[a-z-]+)", prose(text)))
    assert shown <= flags(main)


def test_make_targets_exist(text):
    targets = lines_with(r"^([a-z]+):", read("Makefile"))
    shown = lines_with("^make ([a-z]+)", "\n".join(shell_lines(text)))
    shown += re.findall(r"`make ([a-z]+)", text)
    assert set(shown) <= set(targets)


def test_links_resolve(path, text):
    for link in LINK.findall(prose(text)):
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, fragment = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        if fragment:
            assert fragment in anchors(read(target)), link


def public_names(path):
    """Yield the public classes and constants that a module defines."""
    for node in ast.parse(read(path)).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for part in ast.walk(node):
                stored = isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                if stored and part.id.isupper() and not part.id.startswith("_"):
                    yield part.id


def test_a_name_means_one_thing():
    """No public constant or class of the product has the name of another module's."""
    homes = {}
    shared = set()
    for folder in ("specmesh", "wire", "daemons"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in public_names(path):
                if homes.setdefault(name, path) != path:
                    shared.add(name)
    assert shared == {"T"}, "T is a type variable"


COUNTERPARTS = {
    "backend": "as the API sees a daemon, and in the process of one",
    "base": "what the modules of its package have in common",
    "chat": "a chat for a template, and the dialect of chats",
    "config": "settings, and the commands that show them",
    "core": "of a verifier, and of a drafter",
    "daemon": "of a verifier, of a drafter, and the statistics of both",
    "encoder": "of llama.cpp, and of MLX",
    "events": "of any core, and of the verifier's",
    "grammar": "compiled, and as a source of drafts",
    "llama_options": "of the commands, and as the engine takes them",
    "load": "of models, and `bench load`",
    "model": "of llama.cpp, and of MLX",
    "session": "of a verifier, and of a drafter",
    "steps": "that the core forms, and that engines run",
    "trial": "of llama.cpp's options, and of a target on MLX",
    "vocabulary": "of any model, and read from a vLLM server's tokenizer",
}
"""The names of modules that stand for the same thing in two places."""


def test_a_module_has_a_name_of_its_own():
    """Two files of one name are counterparts."""
    homes = {}
    shared = set()
    for folder in ("specmesh", "wire", "daemons"):
        for path in (ROOT / folder).rglob("*.py"):
            if not path.stem.startswith("__") and homes.setdefault(path.stem, path) != path:
                shared.add(path.stem)
    assert shared == COUNTERPARTS.keys()


def annotated(path):
    """Yield the names and the types of a module's parameters and fields."""
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, ast.unparse(node.annotation)
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target).removeprefix("self._"), ast.unparse(node.annotation)


def test_a_word_of_the_core_means_one_thing():
    """A context is a session's, and a share a part of a whole. A length is a `context_length`."""
    found = {"context": set(), "share": set(), "alone": set()}
    for path in (ROOT / "specmesh" / "core").rglob("*.py"):
        for name, kind in annotated(path):
            if name in found:
                found[name].add(kind)
    assert found["alone"] == set()
    assert found["share"] == {"float"}
    # Those of the sources of drafts, and the length of a batch's sequences.
    assert found["context"] <= {"SessionContext", "SourceContext", "int"}


def test_promises_are_shown_by_tests_that_exist():
    """Each row of SECURITY's table of promises names tests."""
    table = section(read("SECURITY.md"), "Tests that show it")
    rows = lines_with(r"^\| (?!promise)[^|]+ \| (.+) \|$", table)
    assert len(rows) > 15
    for row in rows:
        tests = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert len(tests) == row.count("`") // 2 > 0, row
        for file, name in tests:
            assert re.search(rf"\bdef {name}\(", read(f"tests/{file}")), f"{file}::{name}"


def test_exit_codes_are_those_left_with():
    """The table has the exit codes of our errors, and those that click and the shell add."""
    table = section(read("docs/operations.md"), "Exit codes")
    codes = {0, click.UsageError.exit_code, STUCK, SYSTEM_REFUSED, NOT_WRITTEN, INTERRUPTED}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.SpecmeshError):
            codes.add(value.exit_code)
    assert set(map(int, lines_with(r"^\| (\d+) \|", table))) == codes


def test_cli_reference_is_current():
    assert read("docs/cli.md") == cli_reference.reference(), "run `make docs`"


def unexplained(command):
    """Yield the options without help of a command and its subcommands."""
    for option in options(command):
        if not option.hidden and not option.help:
            yield f"{command.name} {option.opts[0]}"
    for subcommand in getattr(command, "commands", {}).values():
        yield from unexplained(subcommand)


def test_every_option_is_explained():
    assert list(unexplained(main)) == []
