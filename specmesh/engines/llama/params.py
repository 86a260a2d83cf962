"""The structs of parameters that llama.cpp takes, made from settings."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specmesh.config import ModelSettings
from specmesh.engines.llama.library import buffer_types, device_handles, gpu_devices
from specmesh.errors import ConfigError
from specmesh.llama_options import NO_DEVICE, LlamaOptions, Override

_POINTER = ctypes.c_void_p
# In ggml.h's enum ggml_type; the bindings have no name for the type bf16.
_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
NUMBER_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes of a number in a cell: a block of 32 has scales beside its digits."""

# In llama.h's enums of these names.
_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_ROPE_SCALINGS = {"none": 0, "linear": 1, "yarn": 2}
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_LOAD_MODES = {  # by no_mmap and mlock
    (False, False): -1,  # auto: mapped, unless a device cannot
    (True, False): 0,
    (True, True): 2,
    (False, True): 3,
}
READING = (0, 2)
"""Those with which weights are read into memory."""

LOCK_REMEDY = (
    "raise the limit (`ulimit -l unlimited`; LimitMEMLOCK=infinity of a service), or leave it out"
)

CPU_BUFFER = "CPU"
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch)?exps"
"""The names of the weights of experts, as llama-server's --cpu-moe finds them."""


class _BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", _POINTER))


@dataclass(slots=True)
class ModelParams:
    """llama_model_params, and the arrays that it points to, for as long as the model lives."""

    struct: Any
    kept: list[Any] = field(default_factory=list[Any])


def used_devices(settings: ModelSettings) -> tuple[str, ...]:
    """Return the devices that take layers, in their order, as "NAME: description".

    Raises ConfigError for a device that is not there.
    """
    options = settings.llama
    if settings.gpu_layers == 0 or options.device == NO_DEVICE:
        return ()
    # llama.cpp's own order: servers first.
    found = tuple(sorted(gpu_devices(), key=lambda device: not device.startswith("RPC")))
    if options.device:
        by_name = {device.partition(":")[0]: device for device in found}
        for name in options.device:
            if name not in by_name:
                there = ", ".join(by_name) or "no device"
                raise ConfigError(f"--device: llama.cpp has no {name}", f"it has {there}")
        found = tuple(by_name[name] for name in options.device)
    options.check_count(len(found), f"and there are {len(found)}")
    if options.split_mode == "none":
        main_gpu = options.main_gpu or 0
        return found[main_gpu : main_gpu + 1]
    return found


def model_params(
    lib: Any,
    settings: ModelSettings,
    *,
    nextn: bool = False,
    values: Sequence[tuple[str, int]] = (),
) -> ModelParams:
    """Return the parameters of a model's load. Raises ConfigError for an unknown buffer.

    nextn: its NextN layers are loaded too. values: of its header, by key, instead of its own.
    """
    options = settings.llama
    struct = lib.llama_model_default_params()
    params = ModelParams(struct)
    struct.load_mtp = nextn
    if values:
        array = (lib.llama_model_kv_override * (len(values) + 1))()  # an empty key ends it
        for row, (key, value) in zip(array, values, strict=False):
            row.tag = lib.LLAMA_KV_OVERRIDE_TYPE_INT
            row.key = key.encode()
            row.value.val_i64 = value
        params.kept.append(array)
        struct.kv_overrides = array
    struct.n_gpu_layers = -1 if settings.gpu_layers is None else settings.gpu_layers
    struct.load_mode = _LOAD_MODES[options.no_mmap, options.mlock]
    if options.split_mode is not None:
        struct.split_mode = _SPLIT_MODES[options.split_mode]
    if options.main_gpu is not None:
        struct.main_gpu = options.main_gpu
    if options.device:
        names = () if options.device == NO_DEVICE else options.device
        handles = (_POINTER * (len(names) + 1))(*device_handles(names), None)
        struct.devices = _address(params, handles)
    if options.tensor_split:
        most: int = lib.llama_max_devices()  # llama.cpp reads so many
        shares = (ctypes.c_float * most)(*options.tensor_split)
        params.kept.append(shares)
        struct.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
    overrides = [*options.override_tensor, *expert_overrides(options)]
    if overrides:
        struct.tensor_buft_overrides = _address(params, _override_array(overrides))
    return params


def expert_overrides(options: LlamaOptions) -> list[Override]:
    """Return the override by which experts stay on the CPU, if any do."""
    if options.cpu_moe:
        return [Override(EXPERTS, CPU_BUFFER)]
    if options.n_cpu_moe:
        layers = "|".join(map(str, range(options.n_cpu_moe)))
        return [Override(rf"blk\.({layers}){EXPERTS}", CPU_BUFFER)]
    return []


def _override_array(overrides: Sequence[Override]) -> Any:
    """Return an array of llama_model_tensor_buft_override, with an empty one at its end."""
    known = buffer_types()
    array = (_BufferOverride * (len(overrides) + 1))()
    for row, override in zip(array, overrides, strict=False):
        if override.buffer not in known:
            reason = f"--override-tensor: there is no buffer {override.buffer}"
            raise ConfigError(reason, f"name one of {', '.join(known)}")
        row.pattern = override.pattern.encode()
        row.buffer_type = known[override.buffer]
    return array


def _address(params: ModelParams, array: Any) -> Any:
    params.kept.append(array)
    return ctypes.cast(array, _POINTER)


def set_context_options(struct: Any, options: LlamaOptions) -> None:
    """Write the options into llama_context_params, whose n_batch is already there."""
    struct.flash_attn_type = _FLASH_ATTN[options.flash_attn or "auto"]
    struct.type_k = _TYPES[options.cache_type_k or "f16"]
    struct.type_v = _TYPES[options.cache_type_v or "f16"]
    # One step is one micro-batch: llama.cpp's own windows and states are those of a micro-batch.
    struct.n_ubatch = struct.n_batch
    if options.rope_scaling is not None:
        struct.rope_scaling_type = _ROPE_SCALINGS[options.rope_scaling]
    if options.rope_scale is not None:
        struct.rope_freq_scale = 1 / options.rope_scale
    if options.yarn_orig_ctx is not None:
        struct.yarn_orig_ctx = options.yarn_orig_ctx


def trained_ctx(lib: Any, handle: Any, options: LlamaOptions) -> int:
    """Return the ids of the longest text that a model is made for, 0 if its file has no number.

    RoPE scaling makes it longer, as llama.cpp computes it for YaRN.
    """
    trained: int = lib.llama_model_n_ctx_train(handle)
    if options.rope_scale is None:
        return trained
    begun = options.yarn_orig_ctx or original_ctx(lib, handle) or trained
    return int(begun * options.rope_scale)


def original_ctx(lib: Any, handle: Any) -> int:
    """Return the context before the model's own YaRN, 0 if its file has no number."""
    architecture = metadata_text(lib, handle, "general.architecture")
    key = f"{architecture}.rope.scaling.original_context_length"
    text = metadata_text(lib, handle, key)
    return int(text) if text.isdecimal() else 0


def metadata_text(lib: Any, handle: Any, key: str) -> str:
    """Return a value of a loaded model's header as a text, "" if there is none."""
    buffer = ctypes.create_string_buffer(256)
    length: int = lib.llama_model_meta_val_str(handle, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if length >= 0 else ""
