"""The rules of the rings, read from the source: who may import whom; and that bench/'s programs can be imported."""

import ast
import platform
import re
import runpy
import sys
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMPURE = {
    "asyncio",
    "datetime",
    "os",
    "random",
    "secrets",
    "select",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "zmq",
}
PURE_STDLIB = sys.stdlib_module_names - IMPURE
MODEL = {"llama_cpp", "mlx", "mlx_lm"}
UPPER = ("specmesh.daemons", "specmesh.api", "specmesh.cli", "specmesh.client")


def sources(*folders):
    """The modules of these folders (each file once: the links inside specmesh are not followed)."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if not any(parent.is_symlink() for parent in path.parents)]


def named(path):
    return str(path.relative_to(ROOT))


@cache
def nodes(path):
    """All of a file's syntax tree, and what it runs on import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return list(ast.walk(tree)), list(_module_level(tree.body))


def imports(path, *, everywhere=True):
    """The absolute names a file imports: modules, and `module.name` for each name taken from one."""
    names = set()
    for node in nodes(path)[0 if everywhere else 1]:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)} uses a relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _module_level(body):
    """Statements that run on import, with those inside if, try and with."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            children = ast.iter_child_nodes(node)
            yield from _module_level([child for child in children if isinstance(child, ast.stmt)])


def within(name, *packages):
    """Whether an imported name is one of these packages or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


PURE = {
    "specmesh/core": ("numpy", "specmesh.core", "specmesh.errors", "specmesh.wire.messages"),
    "wire": ("specmesh.wire", "specmesh.errors"),
}


@pytest.mark.parametrize("folder", PURE)
def test_core_and_wire_are_pure(folder):
    """They import the pure standard library, themselves and the errors; the core numpy and the wire's messages, too."""
    known = (*PURE_STDLIB, *PURE[folder])
    found = {
        named(path): {name for name in imports(path) if not within(name, *known)}
        for path in sources(folder)
    }
    assert {path: names for path, names in found.items() if names} == {}


FORBIDDEN = {
    "specmesh/engines": (*UPPER, "specmesh.wire"),
    "daemons/link": ("specmesh.daemons.verifier", "specmesh.daemons.drafter"),
    "daemons/runtime": ("specmesh.daemons.verifier", "specmesh.daemons.drafter"),
    **dict.fromkeys(("specmesh", "wire", "daemons"), MODEL),
}
"""What must not be imported where: the daemons, the API, the commands, and the libraries of models but by engines."""


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_nothing_above_is_known(folder):
    files = [
        path for path in sources(folder) if folder != "specmesh" or "engines" not in path.parts
    ]
    found = {
        named(path): {name for name in imports(path) if within(name, *FORBIDDEN[folder])}
        for path in files
    }
    assert {path: names for path, names in found.items() if names} == {}


def module(path):
    """The name a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "specmesh" else ("specmesh", *parts)).removesuffix(
        ".__init__"
    )


def test_no_circle():
    files = {module(path): path for path in sources("specmesh", "wire", "daemons")}
    graph = {}
    for name, path in files.items():
        known = {
            one if one in files else one.rpartition(".")[0]
            for one in imports(path, everywhere=False)
        }
        graph[name] = (known & files.keys()) - {name}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_only_engines_use_any():
    """What a library without types answers is their matter; all else says what it takes and returns."""
    files = [path for path in sources("specmesh", "wire", "daemons") if "engines" not in path.parts]
    assert [named(path) for path in files if imports(path) & {"typing", "typing.Any"}] == []


def test_broad_excepts_say_why():
    found = {
        f"{named(path)}:{number}": re.sub(r"noqa: \w+", "", line.partition("#")[2])
        for path in sources("specmesh", "wire", "daemons")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r"\s*except( \(?(Base)?Exception\b.*)?:", line)
    }
    assert [place for place, why in found.items() if not re.search(r"\w+ \w+", why)] == []


def test_zeromqs_errors_have_one_seam():
    files = sources("specmesh", "daemons")
    assert [
        path.name for path in files if re.search(r"ZMQError|zmq\.Again", path.read_text("utf-8"))
    ] == ["sockets.py"]


WALL = {
    "time.time",
    "time.time_ns",
    "datetime.datetime",
    "datetime.datetime.now",
    "datetime.date",
    "time.localtime",
}
SHOWN_TO_PEOPLE = ["specmesh/api/app.py", "specmesh/engines/chat_template.py"]


def clocks(path):
    called = {ast.unparse(node.func) for node in nodes(path)[0] if isinstance(node, ast.Call)}
    return {name for name in called if name in WALL or name.endswith((".now", ".utcnow", ".today"))}


@pytest.mark.fault("E8.95")
def test_time_is_monotonic():
    """What waits, counts or judges by time uses a clock that nobody sets: a jump must not look like silence."""
    files = sources("specmesh", "wire", "daemons")
    assert sorted(named(path) for path in files if clocks(path)) == SHOWN_TO_PEOPLE
    assert not [path for path in files if "time.time" in imports(path)]


@pytest.mark.skipif(
    sys.platform == "darwin" and platform.machine() != "arm64", reason="MLX has no wheel for it"
)
@pytest.mark.parametrize(
    "name", ["gguf", "huggingface_hub", "llama_cpp", "mlx.core", "mlx_lm", "tokenizers"]
)
def test_no_test_is_skipped_for_want_of_a_library(name):
    """`make setup` has installed all that `importorskip` asks for."""
    import_module(name)


# --- bench/: each program can be imported, and says how it is used


PROGRAMS = [*sorted((ROOT / "bench").glob("*.py")), ROOT / "bench" / "clients" / "__main__.py"]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_help(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    if "ArgumentParser" not in path.read_text(encoding="utf-8"):  # what the programs share
        runpy.run_path(str(path))
        return
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out[:6]) == (0, "usage:")
