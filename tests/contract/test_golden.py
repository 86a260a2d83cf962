"""The schema of each interface is the one that golden/ records: each value's path and type.

`a.b` is a key, `a[]` the items of an array, `a.*` the values of an object whose keys are data. A
value that may also be null is recorded as "null|number", one that may be missing as
"absent|number". `make golden` rewrites the files and keeps both; "absent" is written by hand. A
change to a golden file is a decision with its line in CHANGELOG.md.
"""

import inspect
import json
import os
import typing
from pathlib import Path

import pytest
from harness.ports import free_port, is_open
from harness.tables import cases, rows
from processes import Stream, body, command, generate, until
from prometheus_client.parser import text_string_to_metric_families
from served import Served

import specmesh
from specmesh import errors

FOLDER = Path(__file__).parent / "golden"
REWRITE = bool(os.environ.get("REWRITE_GOLDEN"))
MAPPINGS = {"steps_ms", "drafters", "rejected", "handshake_failures", "top_logprobs"}
MAPPINGS |= {"by_source", "drafted_by_source", "accepted_by_source"}
"""Objects whose keys are data: numbers of rows, names of peers and sources, reasons, tokens."""

TYPES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}


def check(name, value):
    """Compare a value's schema with golden/NAME.json, or record it there."""
    path = FOLDER / f"{name}.json"
    seen = {}
    for at, kind in _walk(value, "$"):
        seen.setdefault(at, set()).add(kind)
    recorded = {}
    if path.exists():
        for at, kinds in json.loads(path.read_text()).items():
            recorded[at] = set(kinds.split("|"))
    if REWRITE:
        merged = _recorded(recorded, seen)
        lines = {at: "|".join(sorted(merged[at])) for at in sorted(merged)}
        path.write_text(json.dumps(lines, indent=1) + "\n")
        return
    differences = "\n".join(_differences(recorded, seen))
    assert not differences, f"{path.name} {DIFFERS}:\n{differences}"


DIFFERS = "differs; if that is meant, run `make golden`"


def check_facts(name, facts):
    """Do the same for facts that are recorded themselves."""
    path = FOLDER / f"{name}.json"
    if REWRITE:
        lines = [f" {json.dumps(key)}: {json.dumps(fact)}" for key, fact in facts.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert json.loads(path.read_text()) == facts, f"{path.name} {DIFFERS}"


def _walk(value, at, key=""):
    if isinstance(value, dict):
        yield at, "object"
        for name, inner in value.items():
            if key in MAPPINGS:
                yield from _walk(inner, f"{at}.*", key)
            else:
                yield from _walk(inner, f"{at}.{name}", name)
    elif isinstance(value, list):
        yield at, "array"
        for inner in value:
            yield from _walk(inner, f"{at}[]", key)
    else:
        yield at, TYPES[type(value)]


def _parent(at):
    return at.removesuffix("[]") if at.endswith("[]") else at.rpartition(".")[0]


def _may_be_none(at):
    """Return True for items of an array and values of a mapping."""
    return at.endswith(("[]", ".*"))


def _differences(recorded, seen):
    for at, kinds in seen.items():
        if at not in recorded:
            yield f"new: {at}"
        elif kinds - recorded[at]:
            yield f"{at} is {'|'.join(sorted(kinds))}, was {'|'.join(sorted(recorded[at]))}"
    for at, kinds in recorded.items():
        optional = "absent" in kinds or _may_be_none(at)
        if at not in seen and not optional and "object" in seen.get(_parent(at), ()):
            yield f"gone: {at}"


def _recorded(recorded, seen):
    """Return the schema that was seen, with the nulls and absences that were known before.

    A value that was null throughout keeps all its kinds: they were not seen, but may come.
    """
    result = {}
    for at, kinds in seen.items():
        before = recorded.get(at, set())
        kept = before if kinds == {"null"} else before & {"null", "absent"}
        result[at] = kinds | kept
    for at in sorted(recorded.keys() - seen.keys(), key=len):
        parent = _parent(at)
        in_object = "object" in seen.get(parent, set())
        unseen = parent in result and (_may_be_none(at) or not in_object)
        if unseen or "absent" in recorded[at]:
            result[at] = recorded[at]
    return result


@cases(
    "before, seen, after",
    """
    ["null|string", "null", "null|string"]
    ["string", "null", "null|string"]
    ["null|string", "number", "null|number"]
    ["absent|string", "string", "absent|string"]
    ["", "null", "null"]
    """,
)
def test_what_make_golden_records(before, seen, after):
    recorded = {"$.a": set(before.split("|"))} if before else {}
    assert _recorded(recorded, {"$.a": {seen}}) == {"$.a": set(after.split("|"))}


KEY = "sk-of-the-golden-files"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "ignore_eos": True}
RESPONSE = {"input": "hi", "max_output_tokens": 30, "ignore_eos": True}
TEXT = {"prompt": "def f(", "max_tokens": 30, "ignore_eos": True}
EVENTS = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def pair(shared, port):
    """The bundled models on llama.cpp, with a chat template.

    Warm, so that nothing is null for lack of a round.
    """
    keys = shared.folder / "api-keys"
    template = shared.folder / "chat.jinja"
    keys.touch(0o600)
    keys.write_text(KEY)
    template.write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    options = ("--http", f"127.0.0.1:{port}", "--api-key-file", keys, "--chat-template", template)
    verifier = shared.verifier("bundled", *options, engine="llama")
    made = {"verifier": verifier, "drafter": shared.drafter("bundled", engine="llama")}
    for daemon in made.values():
        assert generate(daemon, "def f(", ignore_eos=True).code == 0
    return made


def ask(daemon, resource, request=None):
    """Return the answer at the daemon's socket; a request is sent as JSON unless it is bytes."""
    return Served(daemon).ask("GET" if request is None else "POST", resource, request)


def answered(daemon, resource, request=None):
    answer = ask(daemon, resource, request)
    assert answer.status == 200, answer
    return without_report(answer.json())


def without_report(answer):
    """Take out the report, which is the same everywhere and checked on its own."""
    reports = answer.get("specmesh", {}).pop("report", [])
    check("report", [reports] if isinstance(reports, dict) else reports)
    return answer


def streamed(daemon, resource, request):
    """Return the chunks of a stream by their kinds."""
    first, *chunks = ask(daemon, resource, request).chunks()
    kinds = {"first": without_report(first), "text": [], "end": [], "usage": []}
    for chunk in map(without_report, chunks):
        if not chunk["choices"]:
            kinds["usage"].append(chunk)
        elif chunk["choices"][0]["finish_reason"] is None:
            kinds["text"].append(chunk)
        else:
            kinds["end"].append(chunk)
    return kinds


@cases(
    "name, options",
    """
    ["plain", []]
    ["logprobs", ["--logprobs", 2]]
    ["several", ["--n", 2]]
    ["alone", ["--draft-n", 0]]
    """,
)
def test_generate_json(pair, name, options):
    for daemon in pair.values():
        done = generate(daemon, "def f(", *options, json=True, max_tokens=30, ignore_eos=True)
        check(f"generate-{name}", done.json)


def drafts(pair):
    return all(daemon.stats()["draft_n"] is not None for daemon in pair.values())


def test_stats_and_metrics(pair):
    """`stats --json` and /metrics of both are taken while they draft."""
    stats = {}
    metrics = {}

    def taken():
        with Stream(pair["verifier"], body("def f(", 3500, ignore_eos=True, draft_n=4)) as stream:
            stream.read(while_=lambda: sum(stream.accepted) < 20)
            until(lambda: drafts(pair), "the snapshots have it")
            for role, daemon in pair.items():
                stats[role] = command("stats", json=True, socket=daemon.socket).json
                metrics[role] = ask(daemon, "/metrics").raw
            return drafts(pair)

    until(taken, "they draft for as long as it takes to look")
    for role in pair:
        check(f"stats-{role}", stats[role])
        families = text_string_to_metric_families(metrics[role].decode())
        described = {family.name: description_of(family) for family in families}
        check_facts(f"metrics-{role}", dict(sorted(described.items())))


def description_of(family):
    labels = set()
    for sample in family.samples:
        labels |= sample.labels.keys()
    return f"{family.type} of {', '.join(sorted(labels))}"


def test_resources(pair):
    for daemon in pair.values():
        check("health", answered(daemon, "/health"))
        check("models", answered(daemon, "/v1/models"))
        check("ping", command("ping", json=True, count=1, socket=daemon.socket).json)


@cases(
    "name, more",
    """
    ["plain", {}]
    ["several", {"n": 2}]
    ["logprobs", {"logprobs": 2}]
    ["rounds", {"rounds": true}]
    """,
)
def test_completions(pair, name, more):
    for daemon in pair.values():
        check_answers(daemon, "/v1/completions", f"completion-{name}", TEXT | more)


@cases(
    "name, more",
    """
    ["plain", {}]
    ["several", {"n": 2}]
    ["logprobs", {"logprobs": true, "top_logprobs": 2}]
    """,
)
def test_chats(pair, name, more):
    for daemon in pair.values():
        check_answers(daemon, "/v1/chat/completions", f"chat-{name}", CHAT | more)


def check_answers(daemon, path, name, asked):
    """Check an answer as a whole and in a stream."""
    check(name, answered(daemon, path, asked))
    check(f"{name}-stream", streamed(daemon, path, asked | EVENTS))


def test_responses(pair):
    for daemon in pair.values():
        check("response", answered(daemon, "/v1/responses", RESPONSE))


def test_messages(pair):
    for daemon in pair.values():
        check("message", answered(daemon, "/v1/messages", CHAT))
        check("message-tokens", answered(daemon, "/v1/messages/count_tokens", CHAT))


ERRORS = rows(
    """
    ["not JSON", "/v1/completions", "{"]
    ["no prompt", "/v1/completions", {}]
    ["a bad field", "/v1/completions", {"prompt": "x", "temperature": "hot"}]
    ["an unknown field", "/v1/completions", {"prompt": "x", "suffix": "y"}]
    ["a prompt too long", "/v1/completions", {"prompt": $LONG}]
    ["another model's text", "/v1/completions", {"resume": {"id": "cmpl-unknown"}}]
    ["no messages", "/v1/chat/completions", {"messages": []}]
    ["a body too large", "/v1/completions", $GIANT]
    ["an unknown model", "/v1/models/unknown", null]
    ["an unknown resource", "/nothing", null]
    ["another method", "/health", {}]
    """,
    LONG=[1] * 9000,
    GIANT=" " * (2 * 2**20 + 1),
)
"""Requests that are refused; a text is no JSON."""


def test_errors(pair, port, mesh):
    """Each refusal has its status and the fields of the error object, but for its sentence."""
    facts = {}
    for name, path, sent in ERRORS:
        raw = sent.encode() if isinstance(sent, str) else sent
        facts[name] = refusal(ask(pair["verifier"], path, raw))
        assert refusal(ask(pair["drafter"], path, raw)) == facts[name]
    facts["no key"] = refusal(Served(pair["verifier"], port).ask("GET", "/v1/models"))
    other = free_port()
    drafter = mesh.drafter("", "--http", f"127.0.0.1:{other}", ready=False)
    # The port opens later than the socket.
    until(lambda: is_open(other), "its port is open")
    facts["no verifier"] = refusal(ask(drafter, "/v1/completions", TEXT))
    evil = {"Origin": "https://evil.example"}
    facts["another site"] = refusal(Served(drafter, other).ask("GET", "/v1/models", **evil))
    check_facts("errors", facts)


def refusal(answer):
    fields = dict(answer.error)
    assert fields.pop("message")
    return {"status": answer.status, **fields}


def test_exit_codes():
    facts = {}
    for name, cls in vars(errors).items():
        if isinstance(cls, type) and issubclass(cls, errors.SpecmeshError):
            facts[name] = {"exit_code": cls.exit_code, "code": cls.code}
    check_facts("exit-codes", facts)


def test_settings():
    facts = {}
    for role in ("verifier", "drafter"):
        shown = command("config", "show", role, json=True).json
        facts[role] = sorted(shown["settings"])
    check_facts("settings", facts)


def test_python_api():
    """The public names, the signatures of their methods, and the fields of options."""
    facts = {}
    for name in specmesh.__all__:
        value = getattr(specmesh, name)
        if not isinstance(value, type):
            continue
        if typing.is_typeddict(value):
            facts[name] = {key: str(kind) for key, kind in value.__annotations__.items()}
            continue
        facts[name] = str(inspect.signature(value))
        for method, found in inspect.getmembers(value, inspect.isfunction):
            if not method.startswith("_"):
                facts[f"{name}.{method}"] = str(inspect.signature(found))
    check_facts("python-api", facts)
