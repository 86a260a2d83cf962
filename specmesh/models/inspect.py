"""`specmesh models inspect`: what a model is, from its headers; its vocabulary and memory, from llama.cpp."""

from dataclasses import asdict, dataclass
from pathlib import Path

from specmesh.errors import ConfigError, EngineError
from specmesh.models.directory import HfDirectory, read_directory
from specmesh.models.gguf_header import GgufHeader, parts, read_header
from specmesh.models.store import human_bytes


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What is known of a model; None where it is not. notes: why something is not known.

    can_trim: whether part of its context can be removed.
    """

    path: str
    kind: str
    architecture: str | None
    parameters: int | None
    size_bytes: int
    quantisation: str | None
    context: int | None
    vocabulary_size: int | None
    vocabulary_fingerprint: str | None
    can_trim: bool | None
    notes: tuple[str, ...]


def inspect(path: Path) -> ModelReport:
    """Look at a GGUF file or a model directory. Raise ConfigError where it is neither, or damaged."""
    if not path.exists():
        raise ConfigError(f"no model at {path}: check the path")
    found: GgufHeader | HfDirectory
    if path.is_dir():
        found = read_directory(path)
        kind, parameters, size_bytes = "hf", found.parameters, found.size_bytes
        size, fingerprint, can_trim, notes = _by_files(path, found)
    else:
        headers = [read_header(part) for part in parts(path)]
        found, kind = headers[0], "gguf"
        parameters, size_bytes = sum(one.parameters for one in headers), sum(one.file_size for one in headers)
        size, fingerprint, can_trim, notes = _by_llama(path)
    return ModelReport(
        path=str(path),
        kind=kind,
        architecture=found.architecture,
        parameters=parameters,
        size_bytes=size_bytes,
        quantisation=found.quantisation,
        context=found.context,
        vocabulary_size=size or found.vocabulary_size,
        vocabulary_fingerprint=fingerprint,
        can_trim=can_trim,
        notes=tuple(notes),
    )


def as_json(report: ModelReport) -> dict[str, object]:
    """What `specmesh models inspect --json` prints."""
    return {"schema_version": 1} | asdict(report)


def lines(report: ModelReport) -> list[str]:
    """The report for people."""
    rows = {
        "path": report.path,
        "kind": {"gguf": "GGUF file", "hf": "Hugging Face directory"}[report.kind],
        "architecture": report.architecture or "unknown",
        "parameters": "unknown" if report.parameters is None else f"{report.parameters:,}",
        "size": human_bytes(report.size_bytes),
        "quantisation": report.quantisation or "unknown",
        "context": "unknown" if report.context is None else f"{report.context} tokens",
        "vocabulary": "unknown" if report.vocabulary_size is None else f"{report.vocabulary_size} tokens",
        "fingerprint": report.vocabulary_fingerprint or "unknown",
        "can trim": {True: "yes", False: "no", None: "unknown"}[report.can_trim],
    }
    return [f"{name:<14}{value}" for name, value in rows.items()] + [f"{'note':<14}{note}" for note in report.notes]


def _by_llama(path: Path) -> tuple[int | None, str | None, bool | None, list[str]]:
    """Size and fingerprint of the vocabulary, whether the context can be trimmed, and notes."""
    from specmesh.engines.llama.engine import probe_trim
    from specmesh.engines.llama.model import read_vocabulary

    size = fingerprint = None
    try:
        vocabulary = read_vocabulary(path)
        size, fingerprint = len(vocabulary), vocabulary.fingerprint()
        return size, fingerprint, probe_trim(path), []
    except (ConfigError, EngineError) as error:
        unknown = "fingerprint and trimming are" if size is None else "whether it can trim is"
        return size, fingerprint, None, [f"{unknown} unknown: {error}"]


def _by_files(path: Path, found: HfDirectory) -> tuple[int | None, str | None, bool | None, list[str]]:
    """The same of a directory."""
    from specmesh.engines.hf_vocabulary import load_hf_vocabulary

    fingerprint, notes = None, list[str]()
    try:
        fingerprint = load_hf_vocabulary(path).vocabulary.fingerprint()
    except ConfigError as error:
        notes.append(f"the fingerprint is unknown: {error}")
    if found.can_trim is None:
        name = found.architecture or "unnamed"
        notes.append(f"whether it can trim is unknown for architecture {name}, or for its window")
    elif found.can_trim:
        notes.append("that it can trim is told by its architecture, not tried")
    return None, fingerprint, found.can_trim, notes
