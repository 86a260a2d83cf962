"""Options of llama.cpp's models: the places of weights, the KV cache, RoPE and adapters.

Names and meanings are those of llama-server.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from specmesh.core.fields import Json
from specmesh.errors import ConfigError
from specmesh.paths import expanded

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
FLOAT_TYPES = ("f32", "f16", "bf16")
FLASH_ATTN = ("on", "off", "auto")
SPLIT_MODES = ("none", "layer", "row", "tensor")
ROPE_SCALINGS = ("none", "linear", "yarn")

NO_DEVICE = ("none",)
"""The value of `device` with which all weights stay on the CPU."""

_LARGEST = float(2**127)  # a number that single precision holds
_OVERRIDE = re.compile(r"(?P<pattern>.+)=(?P<buffer>[\w.:\[\] -]+)")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A file with a LoRA adapter, and the factor of its effect."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Override:
    """A buffer for the tensors whose names a pattern is found in.

    pattern: a regular expression of ECMAScript.
    buffer: the name of a device or of its buffer, such as CPU or CUDA0.
    """

    pattern: str
    buffer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """Options of one model, each with the name of its flag. None: llama.cpp's default.

    cache_type_k, cache_type_v: of CACHE_TYPES.
    flash_attn: of FLASH_ATTN.
    device: names of the devices that take layers, in this order. Empty: all.
    split_mode: of SPLIT_MODES.
    tensor_split: the shares of the devices, in their order.
    main_gpu: the number of the device that takes all, or intermediate results.
    cpu_moe: the experts of all layers are on the CPU.
    n_cpu_moe: the experts of so many first layers are.
    override_tensor: the first whose pattern is found in a name counts, before the experts' options.
    no_mmap: weights are read, not mapped.
    mlock: weights are kept in memory.
    ubatch_size: most rows of a step, unless there are more sequences.
    rope_scaling: of ROPE_SCALINGS.
    rope_scale: a context this many times as long.
    yarn_orig_ctx: the context that YaRN starts from, in ids.
    lora: adapters that are added up.
    """

    cache_type_k: str | None = None
    cache_type_v: str | None = None
    flash_attn: str | None = None
    device: tuple[str, ...] = ()
    split_mode: str | None = None
    tensor_split: tuple[float, ...] = ()
    main_gpu: int | None = None
    cpu_moe: bool = False
    n_cpu_moe: int | None = None
    override_tensor: tuple[Override, ...] = ()
    no_mmap: bool = False
    mlock: bool = False
    ubatch_size: int | None = None
    rope_scaling: str | None = None
    rope_scale: float | None = None
    yarn_orig_ctx: int | None = None
    lora: tuple[Adapter, ...] = ()

    def __post_init__(self) -> None:
        """Raise ConfigError for options that contradict each other, whatever the model is."""
        self._check_cache()
        self._check_devices()
        self._check_weights()
        self._check_rope()

    def given(self) -> list[str]:
        """Return the flags of the options that were given."""
        names = list[str]()
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                names.append(flag_of(field.name))
        return names

    def on_devices(self) -> list[str]:
        """Return the flags of the given options that only layers on a device give a meaning."""
        names = list[str]()
        if self.device and self.device != NO_DEVICE:
            names.append("--device")
        for name in ("split_mode", "tensor_split", "main_gpu"):
            if getattr(self, name) not in (None, ()):
                names.append(flag_of(name))
        return names

    def changing_output(self) -> Json:
        """Return the options that change the logits by more than rounding, adapters excepted."""
        changed: Json = {}
        for name in ("cache_type_k", "cache_type_v"):
            value = getattr(self, name)
            if value not in (None, "f16"):
                changed[name] = value
        for name in ("rope_scaling", "rope_scale", "yarn_orig_ctx"):
            value = getattr(self, name)
            if value is not None:
                changed[name] = value
        return changed

    def _check_cache(self) -> None:
        value_type = self.cache_type_v or "f16"
        if self.flash_attn != "off":
            return
        if value_type not in FLOAT_TYPES:
            reason = f"--cache-type-v {value_type} needs flash attention"
            raise ConfigError(reason, "leave --flash-attn off out")
        if self.split_mode == "tensor":
            reason = "--split-mode tensor needs flash attention"
            raise ConfigError(reason, "leave --flash-attn off out")

    def _check_devices(self) -> None:
        names = self.device
        if len(set(names)) < len(names):
            raise ConfigError(f"--device {','.join(names)} has a device twice", "name each once")
        if "none" in names and names != NO_DEVICE:
            reason = f"--device {','.join(names)} has none beside a device"
            raise ConfigError(reason, "leave one out")
        if names == NO_DEVICE and self.on_devices():
            reason = f"{self.on_devices()[0]} is for devices, --device none allows none"
            raise ConfigError(reason, "leave one out")
        mode = self.split_mode or "layer"
        if self.main_gpu is not None and mode not in ("none", "row"):
            reason = f"--main-gpu means nothing with --split-mode {mode}"
            raise ConfigError(reason, "give --split-mode none, or leave it out")
        if self.tensor_split and mode == "none":
            reason = "--tensor-split shares devices, --split-mode none takes one"
            raise ConfigError(reason, "leave one out")
        if self.tensor_split and not any(self.tensor_split):
            raise ConfigError("--tensor-split gives no device anything", "write shares like 3,1")
        if names:
            self.check_count(len(names), f"--device names {len(names)}")

    def check_count(self, devices: int, meaning: str) -> None:
        """Raise ConfigError for a device that is not among so many; meaning: their number."""
        if len(self.tensor_split) > devices:
            reason = f"--tensor-split has shares for {len(self.tensor_split)} devices, {meaning}"
            raise ConfigError(reason, "give at most as many shares")
        if self.main_gpu is not None and self.main_gpu >= devices:
            reason = f"--main-gpu {self.main_gpu} is not among the devices, {meaning}"
            raise ConfigError(reason, "they are numbered from 0 on")

    def _check_weights(self) -> None:
        if self.cpu_moe and self.n_cpu_moe is not None:
            reason = "--cpu-moe is for all layers, --n-cpu-moe for some"
            raise ConfigError(reason, "leave one out")
        patterns = [override.pattern for override in self.override_tensor]
        for pattern in patterns:
            if patterns.count(pattern) > 1:
                reason = f"--override-tensor has {pattern!r} twice"
                raise ConfigError(reason, "the first one counts: leave the other out")
        paths = [adapter.path for adapter in self.lora]
        for path in paths:
            if paths.count(path) > 1:
                raise ConfigError(f"--lora has {path} twice", "give it once, with its scale")

    def _check_rope(self) -> None:
        if self.rope_scale is not None and not math.isfinite(self.rope_scale):
            raise ConfigError(f"--rope-scale {self.rope_scale} is no factor", "write 2 or 4")
        if self.rope_scaling == "none" and self.rope_scale is not None:
            reason = "--rope-scale scales, --rope-scaling none forbids it"
            raise ConfigError(reason, "leave one out")
        if self.yarn_orig_ctx is not None and self.rope_scaling in ("none", "linear"):
            reason = f"--yarn-orig-ctx is for YaRN, and --rope-scaling is {self.rope_scaling}"
            raise ConfigError(reason, "give --rope-scaling yarn, or leave it out")


def flag_of(name: str) -> str:
    """Return the flag of an option's name."""
    return f"--{name.replace('_', '-')}"


def pieces_of(given: Sequence[str]) -> list[str]:
    """Return the values between commas of an option that may be given more than once."""
    parts = map(str.strip, ",".join(given).split(","))
    return list(filter(None, parts))


def parse_tensor_split(given: Sequence[str]) -> tuple[float, ...]:
    """Return the shares of `--tensor-split`, which commas or slashes divide. Raises ConfigError."""
    shares = list[float]()
    for part in pieces_of([text.replace("/", ",") for text in given]):
        share = _number(part)
        if share is None or share < 0:
            reason = f"--tensor-split: {part!r} is no share of a device"
            raise ConfigError(reason, "write numbers from 0 on, like 3,1")
        shares.append(share)
    return tuple(shares)


def parse_overrides(given: Sequence[str]) -> tuple[Override, ...]:
    """Return the pairs of `--override-tensor PATTERN=BUFFER,...`. Raises ConfigError.

    A comma divides two pairs if the part before it has a buffer. So a pattern may have commas.
    """
    overrides = list[Override]()
    text = ""
    for part in pieces_of(given):
        text = f"{text},{part}" if text else part
        found = _OVERRIDE.fullmatch(text)
        if found is not None:
            overrides.append(Override(found["pattern"], found["buffer"]))
            text = ""
    if text:
        reason = f"--override-tensor: {text!r} is not PATTERN=BUFFER"
        raise ConfigError(reason, r"write '\.ffn_.*_exps=CPU'")
    return tuple(overrides)


def parse_adapters(given: Sequence[str]) -> tuple[Adapter, ...]:
    """Return the adapters of each `--lora FILE[:SCALE]`. Raises ConfigError."""
    adapters = list[Adapter]()
    for text in pieces_of(given):
        name, colon, last = text.rpartition(":")
        scale = _number(last)
        if not colon or scale is None:
            name = text
            scale = 1.0
        if not name:
            raise ConfigError(f"--lora {text!r} names no file", "write FILE or FILE:SCALE")
        adapters.append(Adapter(Path(expanded(name)), scale))
    return tuple(adapters)


def _number(text: str) -> float | None:
    """Return a number that single precision holds, None for any other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < _LARGEST else None
