"""The rules of the rings, read from the source: who may import whom."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMPURE = {"asyncio", "datetime", "os", "random", "select", "socket", "subprocess", "threading", "time", "zmq"}
PURE_STDLIB = sys.stdlib_module_names - IMPURE
MODEL = {"llama_cpp", "mlx", "mlx_lm"}
UPPER = ("specmesh.daemons", "specmesh.api", "specmesh.cli", "specmesh.client")


def sources(*folders):
    """The modules of these folders (each file once: the links inside specmesh are not followed)."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if not any(parent.is_symlink() for parent in path.parents)]


def named(path):
    """A path as pytest shows it."""
    return str(path.relative_to(ROOT))


def imports(path, *, everywhere=True):
    """The absolute names a file imports: modules, and `module.name` for each name taken from one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree) if everywhere else _module_level(tree.body):
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


def foreign(path, *packages):
    """What a file imports beyond the pure part of the standard library and `packages`."""
    return {name for name in imports(path) if not within(name, *PURE_STDLIB, *packages)}


def test_a_violation_is_seen(tmp_path):
    """The reader itself sees imports in functions, from-imports and aliases."""
    path = tmp_path / "module.py"
    path.write_text("import numpy as np\nif np:\n    from os import path\ndef f():\n    import zmq.asyncio\n")
    assert imports(path) == {"numpy", "os.path", "zmq.asyncio"}
    assert imports(path, everywhere=False) == {"numpy", "os.path"}
    assert foreign(path, "numpy") == {"os.path", "zmq.asyncio"}


@pytest.mark.parametrize("path", sources("specmesh/core"), ids=named)
def test_core_is_pure(path):
    """The core imports the pure part of the standard library, numpy, itself and the errors."""
    assert not foreign(path, "numpy", "specmesh.core", "specmesh.errors")


@pytest.mark.parametrize("path", sources("wire"), ids=named)
def test_wire_is_pure(path):
    """The wire imports the pure part of the standard library, itself and the errors."""
    assert not foreign(path, "specmesh.wire", "specmesh.errors")


@pytest.mark.parametrize("path", sources("specmesh/engines"), ids=named)
def test_engines_know_nothing_above_them(path):
    """Engines import neither daemons nor API nor command line nor the wire."""
    assert not {name for name in imports(path) if within(name, *UPPER, "specmesh.wire")}


LAYERS = {
    "specmesh/core": ("specmesh.core", {"vocabulary", "sampling", "draft_length", "scheduling", "drafting"}),
    "daemons": ("specmesh.daemons", {"runtime", "link", "verifier", "drafter"}),
}


def module(path):
    """The name a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "specmesh" else ("specmesh", *parts)).removesuffix(".__init__")


def test_no_circle():
    """No module of the product needs itself at import, at any remove."""
    files = {module(path): path for path in sources("specmesh", "wire", "daemons")}
    graph = {}
    for name, path in files.items():
        known = {one if one in files else one.rpartition(".")[0] for one in imports(path, everywhere=False)}
        graph[name] = (known & files.keys()) - {name}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


@pytest.mark.parametrize("folder", LAYERS)
def test_no_circle_of_subpackages(folder):
    """Nor do two subpackages of the core, or of the daemons, need each other."""
    package, subpackages = LAYERS[folder]
    graph = {
        one: {
            other
            for path in sources(f"{folder}/{one}")
            for name in imports(path)
            for other in subpackages - {one}
            if within(name, f"{package}.{other}")
        }
        for one in subpackages
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


@pytest.mark.parametrize("path", sources("daemons/link", "daemons/runtime"), ids=named)
def test_neither_daemon_is_known_below(path):
    """Link and runtime serve both daemons; only daemons/serve.py knows these."""
    assert not {name for name in imports(path) if within(name, "specmesh.daemons.verifier", "specmesh.daemons.drafter")}


@pytest.mark.parametrize("name", ["cli", "client", "errors"])
def test_commands_start_light(name):
    """Importing the command line or the client loads no engine, numpy, ZeroMQ or model, at any remove."""
    heavy = ("specmesh.engines", "numpy", "zmq", *MODEL)
    program = [sys.executable, "-c", f"import specmesh.{name}, sys; print(*sys.modules)"]
    loaded = subprocess.run(program, check=True, capture_output=True, text=True).stdout.split()
    assert not {module for module in loaded if within(module, *heavy)}


@pytest.mark.parametrize(
    "path", sources("specmesh", "wire", "daemons", "tests", "bench", "fuzz", "soak", "tools"), ids=named
)
def test_no_module_is_loaded_twice(path):
    """Nobody imports top-level `wire` or `daemons`: they are specmesh.wire and specmesh.daemons."""
    assert not {name for name in imports(path) if within(name, "wire", "daemons")}


@pytest.mark.parametrize("path", sources("specmesh", "wire", "daemons"), ids=named)
def test_model_libraries_have_one_home(path):
    """llama.cpp and MLX are imported by engines only."""
    if "engines" not in path.parts:
        assert not {name for name in imports(path) if within(name, *MODEL)}


WALL = {"time.time", "time.time_ns", "datetime.datetime", "datetime.datetime.now", "datetime.date", "time.localtime"}
TOLD_TO_PEOPLE = {"specmesh/api/app.py"}
"""Where a date is part of what clients get."""


def clocks(path):
    """The wall clocks that a file reads."""
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
    return {name for name in called if name in WALL or name.endswith((".now", ".utcnow", ".today"))}


@pytest.mark.parametrize("path", sources("specmesh/core", "specmesh/api", "wire", "daemons"), ids=named)
def test_time_is_monotonic(path):
    """What waits, counts or judges by time uses a clock that nobody sets: a jump must not look like silence."""
    assert bool(clocks(path)) == (named(path) in TOLD_TO_PEOPLE)
    imported = {name for name in imports(path) if within(name, "datetime") or name == "time.time"}
    assert not imported


def test_a_wall_clock_is_seen(tmp_path):
    """The reader itself sees them, by any of their names."""
    path = tmp_path / "module.py"
    path.write_text("import time\nfrom datetime import datetime\nprint(time.time(), datetime.now())\n")
    assert clocks(path) == {"time.time", "datetime.now"}
