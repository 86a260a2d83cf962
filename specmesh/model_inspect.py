"""`specmesh models inspect`: what a model is, from its headers; its vocabulary and memory, from llama.cpp."""

from dataclasses import asdict, dataclass
from pathlib import Path

from specmesh.errors import ConfigError, EngineError
from specmesh.gguf_header import parts, read_header
from specmesh.hf_directory import read_directory
from specmesh.model_store import human_bytes


@dataclass(frozen=True, slots=True)
class Report:
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


def inspect(path: Path) -> Report:
    """Look at a GGUF file or a model directory; raises ConfigError where it is neither, or damaged."""
    if not path.exists():
        raise ConfigError(f"no model at {path}: check the path")
    return _directory(path) if path.is_dir() else _gguf(path)


def as_json(report: Report) -> dict[str, object]:
    """What `specmesh models inspect --json` prints."""
    return {"schema_version": 1} | asdict(report)


def lines(report: Report) -> list[str]:
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


def _gguf(path: Path) -> Report:
    headers = [read_header(part) for part in parts(path)]
    first = headers[0]
    size, fingerprint, can_trim, notes = _by_llama(path)
    return Report(
        path=str(path),
        kind="gguf",
        architecture=first.architecture,
        parameters=sum(header.parameters for header in headers),
        size_bytes=sum(part.stat().st_size for part in parts(path)),
        quantisation=first.quantisation,
        context=first.context,
        vocabulary_size=size or first.vocabulary_size,
        vocabulary_fingerprint=fingerprint,
        can_trim=can_trim,
        notes=notes,
    )


def _by_llama(path: Path) -> tuple[int | None, str | None, bool | None, tuple[str, ...]]:
    """Vocabulary's size and fingerprint, whether it can trim, and notes; as much of it as llama.cpp can tell here."""
    from specmesh.engines.llama_facts import probe_trim, read_vocabulary

    try:
        vocabulary = read_vocabulary(path)
    except (ConfigError, EngineError) as error:
        return None, None, None, (f"fingerprint and trimming are unknown: {error}",)
    size, fingerprint = len(vocabulary), vocabulary.fingerprint()
    try:
        return size, fingerprint, probe_trim(path), ()
    except (ConfigError, EngineError) as error:
        return size, fingerprint, None, (f"whether it can trim is unknown: {error}",)


def _directory(path: Path) -> Report:
    found = read_directory(path)
    fingerprint, notes = _hf_fingerprint(path)
    if found.can_trim is None:
        notes.append(
            f"whether it can trim is unknown for architecture {found.architecture or 'unnamed'}, or for its window"
        )
    elif found.can_trim:
        notes.append("that it can trim is told by its architecture, not tried")
    return Report(
        path=str(path),
        kind="hf",
        architecture=found.architecture,
        parameters=found.parameters,
        size_bytes=found.size_bytes,
        quantisation=found.quantisation,
        context=found.context,
        vocabulary_size=found.vocabulary_size,
        vocabulary_fingerprint=fingerprint,
        can_trim=found.can_trim,
        notes=tuple(notes),
    )


def _hf_fingerprint(path: Path) -> tuple[str | None, list[str]]:
    """The fingerprint of a directory's vocabulary, or a note why it has none."""
    from specmesh.engines.hf_vocabulary import load_hf_vocabulary

    try:
        return load_hf_vocabulary(path).vocabulary.fingerprint(), []
    except ConfigError as error:
        return None, [f"the fingerprint is unknown: {error}"]
