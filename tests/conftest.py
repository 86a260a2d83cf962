"""Fixtures shared by all tests."""

import logging
import os
import signal
import socketserver
import sys
import tempfile
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from importlib import import_module
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

# How long an example takes, or is drawn, is the machine's affair; and each run has the same ones.
settings.register_profile(
    "suite",
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# `make fuzz` has others each time, and six times as many.
settings.register_profile(
    "many", settings.get_profile("suite"), max_examples=600, derandomize=False, print_blob=True
)
settings.load_profile("suite")

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell that starts the tests in the background has it ignored, and processes they start would
inherit that.
"""

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""As many workers as cores compute. Further threads of NumPy would wait for each other in loops.

A batch of small matrices took 18 times the processor time.
"""

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
"""Threads of llama.cpp that wait for each other leave the core to the test's other processes.

They would wait in loops, on the cores of those that they wait for.
"""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Each of the thousand processes that tests start would compile all of specmesh anew.

A third of its start.
"""


LONG = ("real", "e2e", "faults", "contract", "properties")
"""Folders of files that take long, in this order; all others come after them."""


def place(parts):
    """Return the place of a test's folder among those of others."""
    places = [at for at, name in enumerate(LONG) if name in parts]
    return min(places, default=len(LONG))


def pytest_collection_modifyitems(items):
    """Mark tests that start daemons.

    Long ones begin first, so that at the end no worker runs without the others.
    """
    items.sort(key=lambda item: place(set(item.path.parts)))
    for item in items:
        if item.path.parent.name in {"e2e", "real"} or {"mesh", "shared"} & set(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.e2e)


def pytest_unconfigure():
    """Close the files that llama-cpp-python opens for good: each worker would warn of them."""
    utils = sys.modules.get("llama_cpp._utils")
    if utils is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()


def forget_configuration():
    """Let each module's logger be configured again: it keeps that of its first line."""
    lazy = type(structlog.get_logger())
    for module in list(sys.modules.values()):
        for name in ("log", "_log"):
            logger = getattr(module, name, None)
            if isinstance(logger, lazy):
                vars(logger).pop("bind", None)


@pytest.fixture(autouse=True)
def _logging_as_before():
    """Undo the logging that commands and daemons configure, as if the process was their own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if structlog.is_configured():
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
        forget_configuration()


@pytest.fixture(scope="session")
def make_gguf(tmp_path_factory):
    """Writes a tiny random GGUF.

    Make_gguf("name", seed=1, ...), options as tiny_gguf.TinyModel has.
    """
    writer = import_module("harness.tiny_gguf")
    folder = tmp_path_factory.mktemp("gguf")

    def make(name, **options):
        return Path(writer.write(folder / f"{name}.gguf", writer.TinyModel(**options)))

    return make


@pytest.fixture(scope="session")
def make_nextn(tmp_path_factory):
    """Writes a GGUF whose NextN layers draft.

    make_nextn("bundled") writes the bundled target with one; make_nextn("name", arch=..., nextn=1)
    a tiny model, options as tiny_gguf.TinyModel has. The same name gives the same file.
    """
    writer = import_module("harness.nextn")
    tiny = import_module("harness.tiny_gguf")
    folder = tmp_path_factory.mktemp("nextn")

    def make(name, **options):
        path = folder / f"{name}.gguf"
        if path.is_file():
            return path
        if options:
            return Path(writer.write_tiny(path, tiny.TinyModel(**options)))
        return Path(writer.write(path))

    return make


@pytest.fixture(scope="session")
def make_adapter(tmp_path_factory):
    """Writes a LoRA adapter of a tiny GGUF.

    Make_adapter("name", seed=1, ...), options as tiny_gguf.TinyAdapter has.
    """
    writer = import_module("harness.tiny_gguf")
    folder = tmp_path_factory.mktemp("lora")

    def make(name, **options):
        path = folder / f"{name}.gguf"
        return Path(writer.write_adapter(path, writer.TinyAdapter(**options)))

    return make


@pytest.fixture(scope="session")
def make_hf(tmp_path_factory):
    """Writes a tiny Hugging Face directory for MLX.

    make_hf("name", "hybrid", seed=1), kinds as tiny_hf.KINDS has. make_hf("name", gguf=path) writes
    the weights of a GGUF file.
    """
    pytest.importorskip("mlx_lm")
    pytest.importorskip("mlx.core")
    writer, converter = import_module("harness.tiny_hf"), import_module("hf_folder")
    folder = tmp_path_factory.mktemp("hf")

    def make(name, kind="llama", gguf=None, **options):
        if gguf is not None:
            return Path(converter.write(folder / name, gguf))
        return Path(writer.write(folder / name, kind, **options))

    return make


@pytest.fixture(scope="session")
def tiny_gguf(make_gguf):
    """A Llama of two layers and 320 ids with random weights."""
    return make_gguf("tiny")


@pytest.fixture
def fake_daemon():
    """Makes sockets that answer HTTP requests by their path.

    Fake_daemon({"/stats": (200, b"{}")}); None hangs up.
    """
    with ExitStack() as ends:
        # a socket's path has 103 bytes
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp")))

        def make(answers):
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self):
                    self.rfile.read(int(self.headers.get("Content-Length", 0)))
                    answer = answers[self.path]
                    if answer is not None:
                        self.send_response(answer[0])
                        self.end_headers()
                        self.wfile.write(answer[1])

                do_POST = do_GET  # noqa: N815

                def log_message(self, *_):
                    """Say nothing."""

            path = folder / f"{len(list(folder.iterdir()))}.sock"
            server = ends.enter_context(socketserver.UnixStreamServer(str(path), Handler))
            ends.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            return path

        yield make
