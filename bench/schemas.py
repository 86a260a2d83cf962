"""Take real JSON schemas as `response_format`, and check documents that are written by them.

    python bench/schemas.py FOLDER [--sample N] [--documents N] [--instances]

FOLDER has a schema in each JSON file, or, as `maskbench/data` of guidanceai's jsonschemabench has
it, an object with `schema` and `tests`. N files are taken, evenly over all names (1,050; 0: all).
`--documents` writes N documents of each schema at random and checks them by jsonschema.
`--instances` follows the documents of `tests`: valid ones that cannot be written, and invalid ones
that can. Prints how many schemas are refused, by kind, and the faults; exit code 1 if a
document is invalid, or a schema is refused only since its objects are closed.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from command_line import Options
from llguidance import LLMatcher, LLTokenizer
from validity import BYTES, Writer, repeated_names, violation

from specmesh.api.dialects.chat import parse_chat
from specmesh.core.sampling.constraint import MAX_GRAMMAR, Grammar
from specmesh.engines.grammar import Grammars
from specmesh.engines.schema_faults import LIMITS, ON_ONE_LINE
from specmesh.errors import RequestError

SHOWN = 3  # examples of each kind


def files(folder: Path, sample: int) -> list[Path]:
    """Return the files to read."""
    every = sorted(folder.glob("*.json"))
    if not every:
        raise SystemExit(f"no JSON files in {folder}")
    if not 0 < sample < len(every):
        return every
    return [every[number * len(every) // sample] for number in range(sample)]


def read(path: Path) -> tuple[Any, list[Any]]:
    """Return a file's schema, and its documents for tests."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if "schema" in found and "tests" in found:
        return found["schema"], found["tests"] or []
    return found, []


def grammar_of(schema: Any) -> Grammar:
    """Return the grammar that a chat with this schema leads to. Raise RequestError."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "Go."}], "response_format": form}
    grammar = parse_chat(body).requests[0].params.grammar
    assert grammar is not None
    return grammar


def kind_of(refusal: str) -> str:
    """Return the kind of a refusal: places, names, numbers and texts are left out."""
    refusal = re.sub(r"(cannot be used): [^ ]+: ", r"\1: ", refusal)
    return re.sub(r"'[^']*'|\b\d+\b", "_", refusal)[:110]


def plain_matcher(schema: Any) -> LLMatcher | None:
    """Return the library's matcher of a schema as it stands; None if it refuses the schema."""
    if not isinstance(schema, dict):
        return None
    source = f"start: %json {json.dumps(schema | {'x-guidance': ON_ONE_LINE})}"
    matcher = LLMatcher(LLTokenizer("byte"), source, log_level=0, limits=LIMITS)
    if matcher.is_error():
        return None
    return matcher


def fits_plainly(schema: Any, text: str) -> bool:
    """Return True if the library lets a document pass by the schema as it stands."""
    matcher = plain_matcher(schema)
    ids = list(text.encode())
    return matcher is not None and matcher.validate_tokens(ids) == len(ids)


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a document, at any depth."""
    members: Iterable[Any] = ()
    if isinstance(value, dict):
        yield value
        members = value.values()
    elif isinstance(value, list):
        members = value
    for member in members:
        yield from objects_in(member)


def are_declared(document: Any, schema: Any) -> bool:
    """Return True if `properties` anywhere in a schema declare all names of a document."""
    declared: set[str] = set()
    for part in objects_in(schema):
        properties = part.get("properties")
        if isinstance(properties, dict):
            declared |= properties.keys()
    return all(part.keys() <= declared for part in objects_in(document))


class Trial:
    """Tries schemas, and counts the results by kind."""

    def __init__(self, documents: int, instances: bool) -> None:
        self._grammars = Grammars(BYTES)
        self._documents = documents
        self._instances = instances
        self.counts = Counter[str]()
        self.refused = defaultdict[str, list[str]](list)
        self.troubles = list[str]()

    def close(self) -> None:
        """End the compiler's process."""
        self._grammars.close()

    def try_file(self, path: Path) -> None:
        """Compile a file's schema and, if wanted, write and read documents of it."""
        schema, tests = read(path)
        try:
            grammar = grammar_of(schema)
            self._grammars.compile(grammar)
        except RequestError as error:
            self._refuse(path.stem, schema, str(error))
            return
        self.counts["compiled"] += 1
        for seed in range(self._documents):
            self._write(path.stem, schema, grammar, seed)
        if self._instances:
            for test in tests:
                self._follow(path.stem, schema, grammar, test)

    def _refuse(self, name: str, schema: Any, why: str) -> None:
        self.counts["refused"] += 1
        self.refused[kind_of(why)].append(name)
        if plain_matcher(schema) is not None and len(json.dumps(schema)) <= MAX_GRAMMAR:
            self.counts["refused only as closed"] += 1
            self.troubles.append(f"refused only as closed: {name}: {why}")

    def _write(self, name: str, schema: Any, grammar: Grammar, seed: int) -> None:
        try:
            written = Writer(seed).write(self._grammars.compile(grammar))
        except RequestError as error:
            self.counts["documents stuck"] += 1
            self.troubles.append(f"stuck: {name}: {error}")
            return
        if not written.complete:
            self.counts["documents cut"] += 1
            return
        wrong = violation(schema, written.text)
        if wrong:
            self.counts["documents invalid"] += 1
            self.troubles.append(f"invalid: {name}: {wrong}: {written.text[:200]}")
        else:
            self.counts["documents valid"] += 1
        twice = repeated_names(written.text)
        if twice:
            self.counts["documents with a name twice"] += 1
            self.troubles.append(f"a name twice: {name}: {', '.join(twice)}")

    def _follow(self, name: str, schema: Any, grammar: Grammar, test: Any) -> None:
        text = json.dumps(test["data"], ensure_ascii=False)
        ids = [*text.encode(), len(BYTES) - 1]
        fits = self._grammars.compile(grammar).count_allowed(ids) == len(ids)
        if test["valid"] and fits:
            self.counts["valid instances that fit"] += 1
        elif test["valid"]:
            self.counts["valid instances that do not fit"] += 1
            self._count_lost(name, schema, test["data"], text)
        elif not fits:
            self.counts["invalid instances that do not fit"] += 1
        else:
            self.counts["invalid instances that fit"] += 1
            why = test.get("description", "")
            self.troubles.append(f"fits, but is invalid: {name}: {why}: {text[:150]}")

    def _count_lost(self, name: str, schema: Any, document: Any, text: str) -> None:
        if not fits_plainly(schema, text):
            return
        self.counts["valid instances lost to closing"] += 1
        declared = are_declared(document, schema)
        self.counts["of these, all of their names are declared"] += int(declared)
        if declared:
            self.troubles.append(f"lost to closing: {name}: {text[:200]}")


def lines(trial: Trial) -> Iterator[str]:
    """Yield the table."""
    for name, count in sorted(trial.counts.items()):
        yield f"{count:>7}  {name}"
    yield ""
    by_count = sorted(trial.refused.items(), key=lambda pair: -len(pair[1]))
    for kind, names in by_count:
        yield f"{len(names):>7}  {kind}   ({', '.join(names[:SHOWN])})"
    yield ""
    for trouble in trial.troubles:
        yield trouble[:500]


def main() -> None:
    """Try the schemas and print the table."""
    parser = Options(__doc__)
    parser.add_argument("folder", type=Path, help="files with schemas")
    parser.option("--sample", 1050, "files to take; 0: all")
    parser.option("--documents", 0, "documents of each to write")
    parser.switch("--instances", "follow the files' documents")
    options = parser.parse_args()
    trial = Trial(options.documents, options.instances)
    for path in files(options.folder, options.sample):
        trial.try_file(path)
    trial.close()
    print("\n".join(lines(trial)))
    bad = trial.counts["documents invalid"] + trial.counts["refused only as closed"]
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
