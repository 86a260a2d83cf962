"""Writes a copy of a small GGUF model with its matrices in another type.

python bench/retyped.py OUT.gguf --type F32|F16|Q8_0|Q4_0 [--target FILE]
"""

import argparse
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from padded_model import TYPES

from specmesh.paths import bundled


def write(out: Path, kind: str, source: Path) -> Path:
    """Write the copy of `source`; gains, which are vectors, keep their type."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in {"general.architecture", "general.file_type"}:
            continue
        element = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], element)
    wanted = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
            continue
        writer.add_tensor(
            tensor.name,
            quantize(dequantize(tensor.data, tensor.tensor_type), wanted),
            raw_dtype=wanted,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, required=True)
    parser.add_argument("--target", type=Path, default=Path(bundled("target.gguf")))
    args = parser.parse_args()
    print(write(args.out, args.type, args.target))


if __name__ == "__main__":
    main()
