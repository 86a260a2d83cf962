#!/usr/bin/env bash
# Package:  mlx 0.32.4 (CPU), gguf 0.19.0
# Expected: mx.load of a GGUF file gives BF16 tensors as bfloat16, which MLX has and reads from
#           safetensors.
# Seen:     they become float16 without a word: 100,000 becomes infinity, and 1e-9 and smaller, as
#           in gradients, scales and fine-tuning differences, become 0.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q mlx[cpu]==0.32.4 gguf==0.19.0 numpy==2.4.6
cd "$home"
export TMPDIR=$PWD  # where MLX keeps what it compiles
venv/bin/python - <<'PY'
from importlib.metadata import version

import gguf
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
values = np.array([[1.0, 100_000.0, 1e-9, -3e38]], np.float32)
kind = gguf.GGMLQuantizationType.BF16
writer = gguf.GGUFWriter("bf16.gguf", "llama")
writer.add_tensor("x", gguf.quants.quantize(values, kind), raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

print("mlx", version("mlx"), "gguf", version("gguf"))
tensor = gguf.GGUFReader("bf16.gguf").tensors[0]
right = gguf.quants.dequantize(np.array(tensor.data), kind)[0].tolist()
print("the file, by gguf:", tensor.tensor_type.name, right)
loaded = mx.load("bf16.gguf")["x"]
read = loaded.astype(mx.float32)[0].tolist()
print("the file, by mlx: ", loaded.dtype, read)
mx.save_safetensors("bf16.safetensors", {"x": mx.array(right).astype(mx.bfloat16)})
print("safetensors, by mlx:", mx.load("bf16.safetensors")["x"].dtype)
lost = read == [1.0, float("inf"), 0.0, -float("inf")]
raise SystemExit(0 if loaded.dtype == mx.float16 and lost else 1)
PY
