"""Reads a file of decisions that `specmesh verifier --log-decisions` wrote."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from specmesh.core.decision import SCHEMA_VERSION, Decision, DrafterChange, PolicyRecord
from specmesh.errors import ConfigError


@dataclass(slots=True)
class Trace:
    """What the file holds of one session, in its order."""

    session: int
    decisions: list[Decision] = field(default_factory=list)
    policies: list[PolicyRecord] = field(default_factory=list)
    drafters: list[DrafterChange] = field(default_factory=list)


@dataclass(slots=True)
class DecisionFile:
    """A file's sessions, oldest first, and what its newest header says. A verifier that came back adds a header."""

    path: Path
    model: str = ""
    version: str = ""
    traces: list[Trace] = field(default_factory=list)

    def only(self, session: int) -> "DecisionFile":
        """The same file with this session alone. Raises ConfigError where it is not in it."""
        found = [trace for trace in self.traces if trace.session == session]
        if not found:
            there = ", ".join(str(trace.session) for trace in self.traces[-10:]) or "none"
            raise ConfigError(f"{self.path} has no session {session}: give --session one of those it has ({there})")
        return DecisionFile(self.path, self.model, self.version, found)


def read(path: Path) -> DecisionFile:
    """Read a file; a last line without its end is left out, as a verifier may be writing it.

    Raises ConfigError that names the file, and the line where one is wrong.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): give a file of --log-decisions") from None
    found, traces = DecisionFile(path), dict[int, Trace]()
    for number, line in enumerate(raw.split(b"\n")[:-1], 1):
        try:
            _take(_object(line), found, traces)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
    if not raw.count(b"\n"):
        raise ConfigError(f"{path} holds no decisions: start the verifier with --log-decisions, and generate something")
    return found


def _object(line: bytes) -> dict[str, object]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object: {line[:40].decode('utf-8', 'replace')!r}")  # noqa: TRY004  (of the text)
    return record


def _take(record: dict[str, object], found: DecisionFile, traces: dict[int, Trace]) -> None:
    kind = record.get("kind")
    if kind != "header" and not found.version:
        raise ValueError("no header comes first: give a file of --log-decisions")
    if kind == "header":
        if record.get("schema_version") != SCHEMA_VERSION:
            told = record.get("schema_version")
            raise ValueError(f"schema version {told!r}, and this specmesh reads {SCHEMA_VERSION}: use the one it is of")
        found.model, found.version = str(record.get("model")), str(record.get("specmesh"))
        traces.clear()  # ids of another run: the same number would be another session
    elif kind == "decision":
        decision = Decision.from_json(record)
        _trace(decision.session, found, traces).decisions.append(decision)
    elif kind == "policy":
        policy = PolicyRecord.from_json(record)
        _trace(policy.session, found, traces).policies.append(policy)
    elif kind == "drafter":
        change = DrafterChange.from_json(record)
        _trace(change.session, found, traces).drafters.append(change)
    else:
        raise ValueError(f"kind is {kind!r}, not header, decision, policy or drafter")


def _trace(session: int, found: DecisionFile, traces: dict[int, Trace]) -> Trace:
    if session not in traces:
        traces[session] = Trace(session)
        found.traces.append(traces[session])
    return traces[session]
