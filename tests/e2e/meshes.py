"""Fixtures: daemons as processes, proxies between them, and their logs if a test fails."""

import shutil
import signal
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from processes import FORKED, STARTED, Mesh
from proxy import Proxy


@contextmanager
def running():
    """Start daemons in a folder of their own, until the end of it."""
    folder = Path(tempfile.mkdtemp(prefix="sm-", dir="/tmp"))
    mesh = Mesh(folder, FORKED)
    try:
        yield mesh
    finally:
        mesh.stop()
        _show_logs()
        for daemon in mesh.daemons:
            STARTED.remove(daemon)
        shutil.rmtree(folder)


@pytest.fixture
def mesh():
    """Daemons of one test: mesh.verifier(...), mesh.drafter(...)."""
    with running() as made:
        yield made


@pytest.fixture(scope="module")
def shared():
    """Daemons that the tests of a module share."""
    with running() as made:
        yield made


@pytest.fixture
def beside(verifier, shared):
    """The mesh of a module's own `verifier`, which has no peers at first.

    Drafters that a test starts end with it.
    """
    verifier.alone()
    verifier.idle()
    before = len(shared.daemons)
    yield shared
    for daemon in shared.daemons[before:]:
        daemon.signal(signal.SIGCONT)
        daemon.kill()


@pytest.fixture(params=["verifier", "drafter"])
def role(request):
    return str(request.param)


@pytest.fixture
def proxy():
    """Makes proxies: proxy(port, delay=0.02), options as proxy.Proxy has."""
    with ExitStack() as ends:

        def make(target, **faults):
            made = Proxy(target=target, **faults)
            ends.callback(made.close)
            return made

        yield make


@pytest.fixture(autouse=True)
def logs():
    """Show the daemons' logs of a test that fails."""
    yield
    _show_logs()


def _show_logs():
    for daemon in STARTED:
        text = daemon.text() if daemon.log.exists() else ""
        new = text[daemon.shown :]
        if new:  # pytest shows it if the test fails
            print(f"--- {daemon.log.name} (pid {daemon.pid})\n{new}")  # noqa: T201
        daemon.shown = len(text)
