"""A model is loaded on trial, without its weights, before it is loaded with options.

llama.cpp takes some wrong options without a word, and ends the process for others. So a child
process reads the files' headers and loads the model without weights (`no_alloc`): what is refused
there is told in one line, before anything takes memory or time.
"""

import os
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from specmesh.config import ModelSettings
from specmesh.core.fields import Json, object_at, objects_at
from specmesh.engines.llama.adapters import REMEDY, check_adapter
from specmesh.engines.llama.header import Header, read_header, read_headers
from specmesh.engines.llama.library import (
    ERRORS,
    add_known_servers,
    check_servers,
    gpu_backends,
    gpu_devices,
    library,
    listening,
    quoted_errors,
)
from specmesh.engines.llama.params import (
    LOCK_REMEDY,
    ModelParams,
    expert_overrides,
    metadata_text,
    model_params,
    set_context_options,
    used_devices,
)
from specmesh.engines.sandbox import Child
from specmesh.errors import ChildFailed, ConfigError, NotThereYet
from specmesh.host import lockable_bytes
from specmesh.llama_options import FLOAT_TYPES, Adapter, LlamaOptions, Override
from specmesh.models.files import check_files, parts
from specmesh.paths import check_there

_SECONDS = 120.0  # for large vocabularies on a slow disk
_MEMORY = 2**44  # a GPU's driver reserves addresses without end
_ROWS = 32
_CELLS = 256
_READ = 0  # in llama.h's enum llama_load_mode
_NO_ROPE = -1  # in llama.h's enum llama_rope_type
_OVERRIDDEN = " buffer type overridden to "


def check_options(settings: ModelSettings) -> None:
    """Raise ConfigError for options that this model, or this machine, cannot be run with.

    Raises NotThereYet for a file or a device that may come later.
    """
    options = settings.llama
    path = Path(settings.model or "")
    for adapter in options.lora:
        check_there(adapter.path, "--lora")
        if not adapter.path.is_file():  # no other kind is opened: a FIFO would wait
            raise ConfigError(f"--lora: {adapter.path} is no file", "name a GGUF file")
    check_files(path)
    if settings.rpc:
        check_servers(settings.rpc)
    with closing(Child(__name__, memory=_MEMORY, seconds=_SECONDS)) as child:
        try:
            refusal = child.ask(request_of(settings))
        except ChildFailed as error:
            flags = ", ".join(options.given())
            raise ConfigError(f"llama.cpp cannot run the model with {flags} ({error})") from None
    if not refusal:
        return
    reason = str(refusal["what"])
    remedy = str(refusal["remedy"])
    if refusal["missing"] and refusal["backends"]:
        raise NotThereYet(reason, remedy)
    raise ConfigError(reason, remedy)


def request_of(settings: ModelSettings) -> Json:
    """Return the request about these settings, which `answer` takes."""
    wanted: Json = {
        "model": settings.model,
        "gpu_layers": settings.gpu_layers,
        "rpc": list(settings.rpc),
    }
    options = asdict(settings.llama)
    options["lora"] = [[str(adapter.path), adapter.scale] for adapter in settings.llama.lora]
    return wanted | {"options": options}


def _settings(request: Json) -> ModelSettings:
    """Return the settings of a request of `request_of`."""
    given: dict[str, Any] = dict(object_at(request, "options"))
    overrides = objects_at(given, "override_tensor")
    given["device"] = tuple(given["device"])
    given["tensor_split"] = tuple(given["tensor_split"])
    given["override_tensor"] = tuple(
        Override(str(row["pattern"]), str(row["buffer"])) for row in overrides
    )
    given["lora"] = tuple(Adapter(Path(path), scale) for path, scale in given["lora"])
    return ModelSettings(
        engine="llama",
        model=str(request["model"]),
        gpu_layers=cast("int | None", request["gpu_layers"]),
        rpc=tuple(cast("list[str]", request["rpc"])),
        insecure_rpc=True,  # the parent has checked their addresses
        llama=LlamaOptions(**given),
    )


def answer(request: Json) -> Json:
    """Return {} for options that go together, else what is wrong; runs in the child."""
    settings = _settings(request)
    missing = False
    try:
        library()
        if settings.rpc:
            add_known_servers(settings.rpc)
        try:
            devices = used_devices(settings)
        except ConfigError:
            missing = not set(settings.llama.device) <= _device_names()
            raise
        if settings.llama.mlock and not devices:
            _check_lockable(Path(settings.model or ""))
        _check(settings)
    except ConfigError as error:
        backends = list(gpu_backends()) if missing else []
        refusal: Json = {"what": error.what, "remedy": error.remedy}
        return refusal | {"missing": missing, "backends": backends}
    return {}


def _device_names() -> set[str]:
    return {device.partition(":")[0] for device in gpu_devices()}


def _check(settings: ModelSettings) -> None:
    """Raise ConfigError for the first thing that is wrong."""
    lib = library()
    options = settings.llama
    path = Path(settings.model or "")
    if options.lora:
        headers = read_headers(path)
        for adapter in options.lora:
            check_adapter(_adapter_header(adapter.path), headers)
    _check_patterns(lib, settings)
    flags = ", ".join(options.given())
    with _tried(lib, path, model_params(lib, settings), flags) as (model, _):
        _check_rope(lib, model, options)
        _check_cache(lib, model, options)


def _adapter_header(path: Path) -> Header:
    try:
        return read_header(path)
    except ConfigError as error:
        raise ConfigError(f"--lora {error}", REMEDY) from None


def _check_lockable(path: Path) -> None:
    """Raise ConfigError for a model of more memory than this process may lock."""
    size = sum(part.stat().st_size for part in parts(path))
    limit = lockable_bytes()
    if size > limit:
        sizes = f"the model has {size >> 10} KiB, and {int(limit) >> 10} KiB may be locked"
        raise ConfigError(f"--mlock: {sizes}", LOCK_REMEDY)


def _check_patterns(lib: Any, settings: ModelSettings) -> None:
    """Raise ConfigError for a pattern that is found in no name, or only where an earlier one is.

    llama.cpp itself looks for each: its expressions are not Python's.
    """
    options = settings.llama
    path = Path(settings.model or "")
    taken = set[str]()
    for override in [*options.override_tensor, *expert_overrides(options)]:
        flag = f"--override-tensor {override.pattern!r}"
        if override not in options.override_tensor:
            flag = "--cpu-moe" if options.cpu_moe else f"--n-cpu-moe {options.n_cpu_moe}"
        only = replace(options, override_tensor=(override,), cpu_moe=False, n_cpu_moe=None, lora=())
        params = model_params(lib, replace(settings, llama=only))
        with _tried(lib, path, params, flag) as (_, names):
            pass
        if not names:
            reason = f"{flag}: the model has no such weights"
            raise ConfigError(reason, "leave it out")
        if names <= taken:
            reason = f"{flag}: earlier patterns take all its weights"
            raise ConfigError(reason, "leave one out")
        taken |= names


@contextmanager
def _tried(
    lib: Any, path: Path, params: ModelParams, flags: str
) -> Generator[tuple[Any, set[str]]]:
    """Load a model without weights; yield it, and the names of weights in other buffers."""
    lines = list[str]()
    params.struct.no_alloc = True
    params.struct.load_mode = _READ  # llama.cpp maps no file without weights: it ends the process
    ERRORS.clear()
    with listening(lines.append):
        model = lib.llama_model_load_from_file(os.fsencode(path), params.struct)
    if model is None:
        reason = f"{path} cannot be loaded with {flags} ({quoted_errors()})"
        raise ConfigError(reason, "leave out what it names")
    names = set[str]()
    for line in lines:
        if _OVERRIDDEN in line:
            names.add(line.split()[1])
    try:
        yield model, names
    finally:
        lib.llama_model_free(model)


def _check_rope(lib: Any, model: Any, options: LlamaOptions) -> None:
    given = [flag for flag in options.given() if flag.startswith(("--rope", "--yarn"))]
    if not given:
        return
    if lib.llama_model_rope_type(model) == _NO_ROPE:
        raise ConfigError(f"{given[0]}: the model has no RoPE", "leave it out")
    factor: float = lib.llama_model_rope_freq_scale_train(model)
    scaling = options.rope_scaling
    if scaling in ("linear", "yarn") and options.rope_scale is None and factor == 1.0:
        reason = f"--rope-scaling {scaling} changes nothing without a scale"
        raise ConfigError(reason, "give --rope-scale too")
    architecture = metadata_text(lib, model, "general.architecture")
    own = metadata_text(lib, model, f"{architecture}.rope.scaling.type")
    if options.yarn_orig_ctx is not None and (scaling or own) != "yarn":
        reason = "--yarn-orig-ctx is for YaRN, which the model has not"
        raise ConfigError(reason, "give --rope-scaling yarn too")


def _check_cache(lib: Any, model: Any, options: LlamaOptions) -> None:
    """Raise ConfigError for a KV cache that llama.cpp cannot make of these types."""
    given = [flag for flag in options.given() if flag.startswith(("--cache", "--flash"))]
    if given and lib.llama_model_is_recurrent(model):
        raise ConfigError(f"{given[0]}: the model has no KV cache", "leave it out")
    _check_context(lib, model, options)
    if options.flash_attn == "off" and options.cache_type_k not in (None, *FLOAT_TYPES):
        # Blocks of a quantised type that cross from head to head give wrong logits. llama.cpp
        # looks for that with flash attention only.
        _check_context(lib, model, LlamaOptions(cache_type_k=options.cache_type_k))


def _check_context(lib: Any, model: Any, options: LlamaOptions) -> None:
    struct = lib.llama_context_default_params()
    struct.n_ctx = _CELLS
    struct.n_batch = _ROWS
    set_context_options(struct, options)
    ERRORS.clear()
    context = lib.llama_init_from_model(model, struct)
    if context is None:
        flags = ", ".join(options.given())
        reason = f"llama.cpp makes no context with {flags} ({quoted_errors()})"
        raise ConfigError(reason, "leave out what it names")
    lib.llama_free(context)
