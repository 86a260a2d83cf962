#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp and ggml as shared libraries, built from its sdist)
# Expected: llama_cpp._ggml.libggml is the ggml that llama.cpp in the same process uses. A device
#           that is registered through it, of an RPC server say, can take layers of a model.
# Seen:     libggml.so and libggml.so.0 are two files in the wheel, where CMake makes links, so both
#           are loaded. Each copy has a registry of its own: a backend that is registered in one is
#           unknown to the other. An RPC server added this way takes no layer, while llama.cpp's
#           log counts "offloaded 31/31 layers to GPU" and all of them run on the CPU.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36
cd "$home"
venv/bin/python - <<'PY'
import ctypes
from importlib.metadata import version
from pathlib import Path

from llama_cpp import _ggml, llama_cpp

declared = _ggml.libggml  # what the bindings offer
used = llama_cpp._lib  # llama.cpp; its symbols include those of the ggml that it is linked with


def backends(library):
    """Return the number of backends that a copy knows."""
    library.ggml_backend_reg_count.restype = ctypes.c_size_t
    return library.ggml_backend_reg_count()


Name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)
Count = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)


class Backend(ctypes.Structure):
    """ggml_backend_reg of ggml-backend-impl.h: of one without devices."""

    _fields_ = [
        ("api_version", ctypes.c_int),
        ("get_name", Name),
        ("get_device_count", Count),
        ("get_device", ctypes.c_void_p),
        ("get_proc_address", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


lines = Path("/proc/self/maps").read_text().splitlines()
names = {Path(line.split()[-1]).name for line in lines if "libggml.so" in line}
before = backends(declared), backends(used)
backend = Backend(2, Name(lambda _: b"OTHER"), Count(lambda _: 0), None, None, None)
declared.ggml_backend_register.argtypes = [ctypes.POINTER(Backend)]
declared.ggml_backend_register(ctypes.byref(backend))
after = backends(declared), backends(used)

print("llama-cpp-python", version("llama-cpp-python"))
print("loaded:", *sorted(names))
print(f"backends: {before[0]} by llama_cpp._ggml, {before[1]} by llama.cpp")
print(f"after another one was registered: {after[0]} and {after[1]}")
assert names == {"libggml.so", "libggml.so.0"}, names
assert after == (before[0] + 1, before[1]), after
PY
