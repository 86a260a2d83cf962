"""What a GGUF file says about itself, read without its weights."""

import ctypes
import os
from pathlib import Path
from typing import Any

from specmesh.engines.llama.library import ERRORS, library, quoted_errors
from specmesh.errors import ConfigError
from specmesh.models import check_files

KEYS = ("general.architecture", "general.name", "general.size_label", "tokenizer.ggml.pre")


def metadata(path: Path) -> dict[str, str]:
    """Return the values of those KEYS that the file has. Raises ConfigError."""
    check_files(path)
    lib = library()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    ERRORS.clear()
    handle: Any = lib.llama_model_load_from_file(os.fsencode(path), params)
    if handle is None:
        raise ConfigError(f"{path} could not be read ({quoted_errors()}): give a GGUF file")
    buffer, found = ctypes.create_string_buffer(256), dict[str, str]()
    for key in KEYS:
        if lib.llama_model_meta_val_str(handle, key.encode(), buffer, len(buffer)) >= 0:
            found[key] = buffer.value.decode("utf-8", "replace")
    lib.llama_model_free(handle)
    return found
