"""Rules of the rings, read from the source, and imports of the programs in bench/."""

import ast
import platform
import re
import runpy
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMPURE = """asyncio datetime os random secrets select socket subprocess tempfile threading time
uuid zmq"""
PURE_STDLIB = sys.stdlib_module_names.difference(IMPURE.split())
MODEL = {"llama_cpp", "mlx", "mlx_lm", "vllm"}
UPPER = ("specmesh.daemons", "specmesh.api", "specmesh.cli", "specmesh.client")
PRODUCT = ("specmesh", "wire", "daemons")


def sources(*folders):
    """Yield the modules of these folders; links inside specmesh are not followed."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def named(path):
    return str(path.relative_to(ROOT))


def matching(pattern, paths):
    """Return the names of the files in which a pattern occurs."""
    return [named(path) for path in paths if re.search(pattern, path.read_text("utf-8"))]


@cache
def nodes(path):
    """Return a file's syntax tree as a list; imports inside functions are in it too."""
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def imports(path):
    """Return the absolute names that a file imports: `module`, or `module.name` for each name."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.add(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)} uses a relative import"
            for alias in node.names:
                names.add(f"{node.module}.{alias.name}")
    return names


def within(name, packages):
    """Return True for an imported name that is one of these packages or lies in one."""
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


PURE = {
    "specmesh/core": ("numpy", "specmesh.core", "specmesh.errors", "specmesh.wire.messages"),
    "wire": ("specmesh.wire", "specmesh.errors"),
}
"""What the pure packages may import besides the pure standard library."""


@pytest.mark.parametrize("folder", PURE)
def test_core_and_wire_are_pure(folder):
    pure = (*PURE_STDLIB, *PURE[folder])
    for path in sources(folder):
        for name in imports(path):
            assert within(name, pure), named(path)


FORBIDDEN = {
    "specmesh/engines": (*UPPER, "specmesh.wire"),
    "daemons/link": ("specmesh.daemons.verifier", "specmesh.daemons.drafter"),
    "daemons/runtime": ("specmesh.daemons.verifier", "specmesh.daemons.drafter"),
    **dict.fromkeys(PRODUCT, MODEL),
}
"""What a folder must not import; only engines may import the libraries of models."""


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_nothing_above_is_known(folder):
    for path in sources(folder):
        if folder == "specmesh" and "engines" in path.parts:
            continue
        for name in imports(path):
            assert not within(name, FORBIDDEN[folder]), named(path)


def test_vllm_stands_apart():
    """Nothing needs what is for vLLM, which itself does without vLLM."""
    for path in sources(*PRODUCT):
        if path.name == "vllm.py":  # the command that prints its settings
            continue
        others = ("vllm",) if "vllm" in path.parts else ("vllm", "specmesh.vllm")
        for name in imports(path):
            assert not within(name, others), named(path)


def module(path):
    """Return the name that a file is imported by."""
    name = named(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("specmesh") else f"specmesh.{name}"


def test_no_circle():
    """No module needs itself through others, not even by an import inside a function."""
    imported = {module(path): imports(path) for path in sources(*PRODUCT)}
    graph = {}
    for importer, names in imported.items():
        modules = {name if name in imported else name.rpartition(".")[0] for name in names}
        graph[importer] = (modules & imported.keys()) - {importer}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {error.args[1]}")


def test_only_engines_use_any():
    """Libraries without types are behind the engines, and vLLM's objects in its own folder."""
    for path in sources(*PRODUCT):
        if not {"engines", "vllm"} & set(path.parts):
            assert not {"typing", "typing.Any"} & imports(path), named(path)


def test_broad_excepts_say_why():
    for path in sources(*PRODUCT):
        for line in path.read_text("utf-8").splitlines():
            comment = re.sub(r"noqa: \w+", "", line.partition("#")[2])
            broad = re.match(r"\s*except( \(?(Base)?Exception\b.*)?:", line)
            assert not broad or re.search(r"\w+ \w+", comment), f"{named(path)}: {line}"


def test_zeromqs_errors_have_one_seam():
    assert matching(r"ZMQError|zmq\.Again", sources(*PRODUCT)) == ["daemons/link/sockets.py"]


LOADED = "import sys, specmesh; print(*sorted(n for n in sys.modules if n.startswith('specmesh')))"


def test_the_package_alone_loads_nothing():
    """Not even the client, whose imports take most of a command's start."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "specmesh\n"


def test_the_client_loads_no_engine_and_no_loop():
    """A command that asks a daemon starts without them."""
    loaded = LOADED.replace("specmesh;", "specmesh; specmesh.Client;").replace("if ", "if 1 or ")
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    heavy = {"asyncio", "numpy", "ssl", "zmq", "specmesh.engines", "specmesh.api"}
    assert heavy & set(done.stdout.split()) == set()


EXTRAS = """llguidance llama_cpp jinja2 mlx mlx_lm huggingface_hub transformers tokenizers gguf"""
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({!r}.split())); import {}"


@pytest.mark.parametrize("module", ["vllm", "daemons.verifier.daemon", "daemons.drafter.daemon"])
def test_no_extra_is_needed(module):
    """What a vLLM server loads, and a drafter without a model, comes with specmesh alone."""
    code = WITHOUT.format(EXTRAS, f"specmesh.{module}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


IMPORTED = "import sys, {}; print(*sys.modules)"

LIGHT = {
    "specmesh.engines.sandbox, specmesh.engines.template_renderer": "numpy asyncio zmq llguidance",
    "specmesh.logs": "rich",
    "specmesh.daemons.serve": "starlette uvicorn jinja2 rich prometheus_client",
    "specmesh.daemons.verifier.daemon, specmesh.api.server": "jinja2 rich prometheus_client "
    "specmesh.core.drafter.core",
}
"""Modules of a start, and what they must not load: it would lie between a start and its end."""


@pytest.mark.parametrize("modules", LIGHT)
def test_a_start_loads_nothing_that_it_does_not_need(modules):
    # The log is set up before anything else, as at a daemon.
    code = IMPORTED.format(f"specmesh.logs, {modules}")
    if "renderer" in modules:
        code = IMPORTED.format(modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(LIGHT[modules].split()) & set(done.stdout.split()) == set()


WALL = """time.time time.time_ns datetime.datetime datetime.datetime.now datetime.date
time.localtime"""
SHOWN_TO_PEOPLE = ["specmesh/api/app.py", "specmesh/engines/template_renderer.py"]


def reads_wall_clock(path):
    """Return True for a file that calls a clock which somebody may set."""
    called = {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
    other = any(name.endswith((".now", ".utcnow", ".today")) for name in called)
    return other or bool(called.intersection(WALL.split())) or "time.time" in imports(path)


@pytest.mark.fault("E8.95")
def test_time_is_monotonic():
    """Code that waits, counts or judges by time uses a clock that nobody sets."""
    files = filter(reads_wall_clock, sources(*PRODUCT))
    assert sorted(map(named, files)) == SHOWN_TO_PEOPLE


@pytest.mark.skipif(
    sys.platform == "darwin" and platform.machine() != "arm64", reason="MLX has no wheel for it"
)
@pytest.mark.parametrize(
    "name", ["gguf", "huggingface_hub", "llama_cpp", "mlx.core", "mlx_lm", "tokenizers"]
)
def test_no_test_is_skipped_for_want_of_a_library(name):
    """`make setup` installs every library that `importorskip` asks for."""
    import_module(name)


# --- bench/

PROGRAMS = [*sorted((ROOT / "bench").glob("*.py")), ROOT / "bench" / "clients" / "__main__.py"]


@pytest.fixture
def run_program(monkeypatch):
    """Run a program of bench/ with --help."""
    pytest.importorskip("llama_cpp")

    def run(path, name):
        monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
        monkeypatch.setattr(sys, "argv", [str(path), "--help"])
        runpy.run_path(str(path), run_name=name)

    return run


@pytest.mark.parametrize("path", matching("__main__", PROGRAMS))
def test_programs_show_their_usage(path, run_program, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        run_program(ROOT / path, "__main__")
    assert capsys.readouterr().out.startswith("usage:")


@pytest.mark.parametrize("path", matching(r"\A(?![\s\S]*__main__)", PROGRAMS))
def test_shared_modules_can_be_imported(path, run_program):
    run_program(ROOT / path, "imported")
