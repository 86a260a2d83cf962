#!/usr/bin/env bash
# Package:  gguf 0.19.0, llama-cpp-python 0.3.36 (llama.cpp)
# Expected: an array of arrays, which the format has and GGUFWriter writes, is read as it was
#           written, and llama.cpp passes over a key that it does not know, whatever its type.
# Seen:     GGUFReader returns the items of all inner arrays as one list, without their lengths. To
#           llama.cpp such a file is no GGUF: it reads none of its keys, and loads no model from it.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36 gguf==0.19.0 numpy==2.4.6
cd "$home"
venv/bin/python - <<'PY'
import ctypes

import gguf
import llama_cpp as lc

VALUES = {"flat": [1, 2, 3], "nested": [[1, 2], [3]], "deep": [[["a"], ["b", "c"]], [["d"]]]}
READ = {"flat": [1, 2, 3], "nested": [1, 2, 3], "deep": ["a", "b", "c", "d"]}
LOADS = {"flat": True, "nested": False, "deep": False}


def write(name, values):
    """Write a file of a few ids without layers: llama.cpp reads its vocabulary."""
    writer = gguf.GGUFWriter(f"{name}.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(8)
    writer.add_tokenizer_model("none")
    writer.add_array("unknown.key", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


lines = []


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def noted(_level, text, _data):
    lines.append(text.decode())


lc.llama_log_set(ctypes.cast(noted, lc.llama_log_callback), None)
settings = lc.llama_model_default_params()
settings.vocab_only = True
as_described = True
for name, values in VALUES.items():
    write(name, values)
    found = gguf.GGUFReader(f"{name}.gguf").fields["unknown.key"].contents()
    del lines[:]
    loads = bool(lc.llama_model_load_from_file(f"{name}.gguf".encode(), settings))
    reasons = [line.strip() for line in lines if "unknown.key" in line and "invalid" in line]
    print(f"{values}: GGUFReader reads {found}, llama.cpp loads it: {loads} {reasons}")
    as_described &= found == READ[name] and loads == LOADS[name] and loads != bool(reasons)
raise SystemExit(0 if as_described else 1)
PY
