"""Whether llama.cpp can read a model file, tried in a process of its own before this one opens the file.

llama.cpp's loader ends its process over some damages, and has had overflows that a file can reach. So a file is first
vetted without it (`gguf_vet`), then read by it for a trial, weights left out: its metadata, vocabulary, tokenizer, the
shapes of its weights, and the graphs made of them.
"""

import hashlib
from pathlib import Path

import structlog
from platformdirs import user_cache_path

from specmesh import __version__
from specmesh.child import Child, Limits
from specmesh.engines.llama_library import PINNED
from specmesh.errors import ChildFailed, ConfigError
from specmesh.gguf_header import parts
from specmesh.gguf_vet import check_start
from specmesh.paths import bundled

_log = structlog.get_logger("specmesh.engines.llama")

TRIAL = Limits(
    memory=2**32,
    seconds=120.0,
    environment={
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "GGML_NO_BACKTRACE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    },
)
"""What a trial may take; the largest vocabularies there are take a small part of it. No GPU is touched."""


def try_file(path: Path) -> None:
    """Raise ConfigError, which names the file, where it is damaged or llama.cpp fails over it.

    A file that passed is not tried again until it changes; the bundled ones, which are part of specmesh, never.
    """
    check_start(path)
    passed = _passed(path)
    if passed is None or passed.exists():
        return
    child = Child("specmesh.engines.llama_trial_child", TRIAL)
    try:
        wrong = child.ask({"path": str(path)}).get("wrong")
    except ChildFailed as error:
        wrong = f"{path} cannot be used: llama.cpp fails over it ({error}): get the model again, from whom you trust"
    finally:
        child.close()
    if wrong is not None:
        raise ConfigError(str(wrong))
    _remember(passed)


def _passed(path: Path) -> Path | None:
    """What is there once this file passed; None where no trial is needed."""
    if path.resolve().parent == Path(bundled("target.gguf")).resolve().parent:
        return None
    facts: list[object] = [PINNED, __version__]
    for part in parts(path):
        try:
            found = part.stat()
        except OSError:
            continue  # the trial says which part is missing
        facts += [str(part.resolve()), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    name = hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest()[:32]
    return user_cache_path("specmesh") / "tried" / name


def _remember(passed: Path) -> None:
    try:
        passed.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        passed.touch(mode=0o600)
    except OSError as error:
        _log.warning("trial_not_remembered", folder=str(passed.parent), reason=error.strerror)
