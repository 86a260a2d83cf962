"""Write a copy of a small Llama GGUF with a large model's cost and the same function.

    python bench/padded_model.py OUT.gguf [--type F32|F16|Q8_0|Q4_0] [--params 1e9] [--width N]
                                 [--target FILE]

Two paddings, both of which leave the logits as they are but for rounding:

- The residual stream is widened with channels that are always zero: matrices that read it get zero
  columns, those that write it zero rows. RMSNorm divides by the mean over more channels than
  before, which its gain, times the root of old / new width, and its epsilon, times old / new
  width, make good. Where new / old is a power of four, that root is a power of two and nothing is
  rounded anew.
- After the last layer come layers of a large model's shape with random weights of the wanted type.
  Their attn_output and ffn_down, of the same type, are zero: they are read and multiplied as any
  others, and add nothing.

The original layers keep their sizes, values and types. Sizes then differ between layers, which
llama.cpp reads for the architecture `deci`, a Llama with per-layer sizes; for `llama` it takes the
first layer's.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from command_line import Options
from gguf.quants import quantize
from numpy.typing import NDArray

from specmesh.paths import bundled

Array = NDArray[Any]
TYPES = ("F32", "F16", "Q8_0", "Q4_0")
_FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0", "Q4_0": "MOSTLY_Q4_0"}
WIDTHS = {0.5e9: 1024, 2e9: 2048, 5e9: 3072}
"""Widths of models with fewer parameters than these."""
LARGEST_WIDTH = 4096
_ZERO = ("attn_output", "ffn_down")
_SIZES = (
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "head_count",
    "head_count_kv",
    "rms_epsilon",
)
_OWN = ("GGUF.", "general.architecture", "general.file_type", "general.name")
_ROWS_AT_ONCE = 2048
"""Rows quantised in one go: gguf's quantisation makes several float copies of its input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """The shape and the number of padding layers."""

    width: int
    count: int
    head: int = 64

    @property
    def hidden(self) -> int:
        """Return the width of the feed-forward part."""
        return 4 * self.width

    @property
    def heads(self) -> int:
        """Return the number of query heads."""
        return self.width // self.head

    @property
    def heads_kv(self) -> int:
        """Return the number of key and value heads."""
        return max(self.width // 256, 1)

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return (rows, columns) of the matrices of one layer, by name."""
        queries = self.heads * self.head
        keys = self.heads_kv * self.head
        key = (keys, self.width)
        up = (self.hidden, self.width)
        return {
            "attn_q": (queries, self.width),
            "attn_k": key,
            "attn_v": key,
            "attn_output": (self.width, queries),
            "ffn_gate": up,
            "ffn_up": up,
            "ffn_down": (self.width, self.hidden),
        }

    def params(self) -> int:
        """Return the number of weights of one layer without its two gains."""
        return sum(map(math.prod, self.matrices().values()))


def shape_for(params: float, width: int | None = None) -> Layer:
    """Return padding layers with `params` weights, in the proportions of such Llama models."""
    if width is None:
        width = _width_for(params)
    layer = Layer(width=width, count=1)
    return replace(layer, count=max(round(params / layer.params()), 1))


def _width_for(params: float) -> int:
    for limit, width in WIDTHS.items():
        if params < limit:
            return width
    return LARGEST_WIDTH


def widen(name: str, values: Array, width: int, old: int) -> Array:
    """Return an original tensor for a residual stream of `width` channels instead of `old`."""
    kind = name.split(".")[-2]
    if kind.endswith("_norm"):
        gain = np.zeros(width, values.dtype)
        gain[:old] = values * np.sqrt(old / width)
        return gain
    rows, columns = values.shape
    shape = (rows, width)
    if kind in _ZERO:
        shape = (width, columns)
    wide = np.zeros(shape, values.dtype)
    wide[:rows, :columns] = values
    return wide


def quantised(values: Array, kind: str) -> Array:
    """Return a float32 matrix in the type of that name; a quantised one as GGUF's bytes."""
    target = gguf.GGMLQuantizationType[kind]
    parts: list[Array] = []
    for row in range(0, len(values), _ROWS_AT_ONCE):
        part = values[row : row + _ROWS_AT_ONCE]
        parts.append(quantize(part, target))
    return np.concatenate(parts)


def padding(layer: Layer, kind: str, seed: int = 0) -> dict[str, Array]:
    """Return the matrices of one padding layer, stored in type `kind`.

    They are random; those that write the residual stream are zero.
    """
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for name, shape in layer.matrices().items():
        values = np.zeros(shape, np.float32)
        if name not in _ZERO:
            values = rng.standard_normal(shape, np.float32)
            values /= np.float32(np.sqrt(shape[1]))
        out[name] = quantised(values, kind)
    return out


def _copy_fields(writer: gguf.GGUFWriter, reader: gguf.GGUFReader) -> None:
    """Copy all fields but sizes and those of the file itself: tokenizer, rotation, context."""
    for name, field in reader.fields.items():
        if name.startswith(_OWN) or name.endswith(_SIZES):
            continue
        deci_name = re.sub(r"^llama\.", "deci.", name)
        writer.add_key_value(deci_name, field.contents(), *field.types[:2])


def _add_sizes(writer: gguf.GGUFWriter, reader: gguf.GGUFReader, layer: Layer) -> None:
    def old(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    original = old("block_count")

    def of_each(key: str, added: int) -> list[int]:
        return [old(key)] * original + [added] * layer.count

    width_share = old("embedding_length") / layer.width
    writer.add_embedding_length(layer.width)
    writer.add_block_count(original + layer.count)
    writer.add_feed_forward_length(of_each("feed_forward_length", layer.hidden))
    writer.add_head_count(of_each("attention.head_count", layer.heads))
    writer.add_head_count_kv(of_each("attention.head_count_kv", layer.heads_kv))
    writer.add_layer_norm_rms_eps(old("attention.layer_norm_rms_epsilon") * width_share)
    writer.add_key_length(layer.head)
    writer.add_value_length(layer.head)


def _check(reader: gguf.GGUFReader, layer: Layer) -> int:
    """Return the original's width. Raise SystemExit if this target cannot be padded so."""
    if reader.fields["general.architecture"].contents() != "llama":
        raise SystemExit("only a GGUF of architecture llama can be padded")
    width = int(reader.fields["llama.embedding_length"].contents())
    head = int(reader.fields["llama.rope.dimension_count"].contents())
    if layer.width < width or layer.head != head:
        raise SystemExit(f"the padding needs heads of {head} and a width of at least {width}")
    return width


def write(out: Path, layer: Layer, kind: str, source: Path) -> Path:
    """Write the padded copy of `source`; a reader sees the whole file or none."""
    reader = gguf.GGUFReader(source)
    width = _check(reader, layer)
    temporary = out.with_name(out.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, "deci")
    name = source.stem
    if "general.name" in reader.fields:
        name = reader.fields["general.name"].contents()
    writer.add_name(f"{name} padded {kind}")
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[kind]])
    _copy_fields(writer, reader)
    _add_sizes(writer, reader, layer)
    for tensor in reader.tensors:
        values = np.asarray(tensor.data)
        writer.add_tensor(tensor.name, widen(tensor.name, values, layer.width, width))
    _add_padding(writer, layer, kind, first=int(reader.fields["llama.block_count"].contents()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return temporary.replace(out)


def _add_padding(writer: gguf.GGUFWriter, layer: Layer, kind: str, first: int) -> None:
    """Add all padding layers from number `first` on. Their values do not matter for the cost."""
    matrices = padding(layer, kind)
    gain = np.ones(layer.width, np.float32)
    raw: gguf.GGMLQuantizationType | None = None
    if kind not in {"F32", "F16"}:
        raw = gguf.GGMLQuantizationType[kind]
    for index in range(first, first + layer.count):
        writer.add_tensor(f"blk.{index}.attn_norm.weight", gain)
        writer.add_tensor(f"blk.{index}.ffn_norm.weight", gain)
        for name, values in matrices.items():
            writer.add_tensor(f"blk.{index}.{name}.weight", values, raw_dtype=raw)


def main() -> None:
    """Write one file and print its properties."""
    parser = Options(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="Q8_0")
    parser.option("--params", 1e9, "weights in the padding layers")
    parser.add_argument(
        "--width", type=int, help="channels of the residual stream (default: by --params)"
    )
    parser.option("--target", Path(bundled("target.gguf")))
    args = parser.parse_args()
    layer = shape_for(args.params, args.width)
    write(args.out, layer, args.type, args.target)
    weights = layer.params() * layer.count / 1e6
    print(f"{args.out}: {weights:.0f} M padding weights of type {args.type}, {layer}")


if __name__ == "__main__":
    main()
