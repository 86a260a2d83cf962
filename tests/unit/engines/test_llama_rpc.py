"""llama.cpp's RPC where it is not there: a build without it, and servers that are none.

What works is shown by daemons (tests/e2e/test_rpc.py): devices are registered for the life of a process.
"""

import socket
import threading
from types import SimpleNamespace

import pytest

from specmesh.engines.llama import library as llama_library
from specmesh.engines.llama import rpc as llama_rpc
from specmesh.errors import ConfigError

pytest.importorskip("llama_cpp")


class Build:
    """ggml, or what it would be without RPC."""

    def __init__(self):
        self.ggml_backend_reg_by_name = Function(None)
        self.ggml_backend_reg_get_proc_address = Function(None)


class Function(SimpleNamespace):
    """A C function that returns what it is told to."""

    def __init__(self, result):
        super().__init__(result=result)

    def __call__(self, *_):
        return self.result


def test_a_build_without_rpc(monkeypatch):
    """Said before anything else is tried, with the command that builds another."""
    monkeypatch.setattr(llama_rpc, "ggml_library", Build)
    for tried in (lambda: llama_rpc.add_servers(["127.0.0.1:1"]), lambda: llama_rpc.serve("127.0.0.1:1", 1)):
        with pytest.raises(ConfigError, match=r'CMAKE_ARGS="-DGGML_RPC=ON" pip install .*llama-cpp-python=='):
            tried()


@pytest.mark.models
def test_nobody_answers():
    """A closed port is a ConfigError with the address, and no device is registered."""
    before = llama_library.gpu_devices()
    with pytest.raises(ConfigError, match=r"no RPC server .* answers at 127\.0\.0\.1:1 .*rpc-server"):
        llama_rpc.add_servers(["127.0.0.1:1"])
    assert llama_library.gpu_devices() == before


@pytest.mark.models
def test_a_server_of_something_else():
    """What answers is no RPC server: the process that asked it ended, not this one."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConfigError, match=r"no RPC server of llama\.cpp .* answers at"):
            llama_rpc.add_servers([f"127.0.0.1:{server.getsockname()[1]}"])
        thread.join()


def test_the_fastest_devices_are_lent():
    """GPUs, or the CPU where there are none: never nothing."""
    assert len(llama_library.accelerators()) >= 1
