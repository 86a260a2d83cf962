#!/usr/bin/env bash
# Package:  gguf 0.19.0
# Expected: what GGUFWriter is told to write is read again, also an array of no items and an empty
#           text, which the format has; or it is refused.
# Seen:     add_array and add_string leave them out without a word. A key that had a value keeps
#           the old one, while zero and false overwrite theirs. For a vocabulary without merges
#           add_token_merges([]) writes no tokenizer.ggml.merges, and llama.cpp does not load such
#           a file ("cannot find tokenizer merges"). GGUFReader reads both kinds of empty values.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q gguf==0.19.0
cd "$home"
venv/bin/python - <<'PY'
import logging
import struct
from importlib.metadata import version

import gguf

logging.disable()  # it tells that a key is written twice


def read(name):
    """Return the keys and values of a file."""
    fields = gguf.GGUFReader(name).fields.items()
    return {key: field.contents() for key, field in fields if not key.startswith("GGUF.")}


def written(*steps):
    """Return the keys and values of a file that the library wrote."""
    writer = gguf.GGUFWriter("written.gguf", "llama")
    for name, *arguments in steps:
        getattr(writer, name)(*arguments)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    values = read("written.gguf")
    del values["general.architecture"]
    return values


def text(value):
    return struct.pack("<Q", len(value)) + value


def by_hand():
    """Return the keys and values of a file with an empty text and an empty array of texts."""
    fields = text(b"a") + struct.pack("<I", gguf.GGUFValueType.STRING) + text(b"")
    array = (gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING, 0)
    fields += text(b"b") + struct.pack("<IIQ", *array)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + fields
    with open("hand.gguf", "wb") as file:
        file.write(data + bytes(-len(data) % 32))
    return read("hand.gguf")


print("gguf", version("gguf"))
merges = gguf.Keys.Tokenizer.MERGES
tries = [
    ([("add_array", "k", [])], {}),
    ([("add_string", "k", "")], {}),
    ([("add_string", "k", "old"), ("add_string", "k", "")], {"k": "old"}),
    ([("add_array", "k", ["old"]), ("add_array", "k", [])], {"k": ["old"]}),
    ([("add_string", "k", "old"), ("add_string", "k", "new")], {"k": "new"}),
    ([("add_uint32", "k", 7), ("add_uint32", "k", 0)], {"k": 0}),
    ([("add_bool", "k", True), ("add_bool", "k", False)], {"k": False}),
    ([("add_token_merges", ["a b"])], {merges: ["a b"]}),
    ([("add_token_merges", [])], {}),
]
as_described = True
for steps, seen in tries:
    values = written(*steps)
    calls = ", ".join(f"{name}{tuple(arguments)}" for name, *arguments in steps)
    print(f"{calls} writes {values}")
    as_described &= values == seen
values = by_hand()
print("written by hand and read:", values)
as_described &= values == {"a": "", "b": []}
raise SystemExit(0 if as_described else 1)
PY
