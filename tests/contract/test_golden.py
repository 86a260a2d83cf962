"""What users and other programs build on has the schema that golden/ records: the path of every value, and its type.

`a.b` is a key, `a[]` the items of an array, `a.*` the values of an object whose keys are data. A value that may also be
null is recorded as "null|number", one that may be missing as "absent|number". `make golden` rewrites the files and
keeps both; "absent" is written by hand. A change to a golden file is a decision: tell it in CHANGELOG.md.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.ports import free_port, is_open
from processes import Daemon, Mesh, Stream, body, command, generate, until
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from served import Answer, Served

from specmesh import errors

FOLDER = Path(__file__).parent / "golden"
REWRITE = bool(os.environ.get("REWRITE_GOLDEN"))
MAPPINGS = {
    *("steps_ms", "drafters", "rejected", "handshake_failures", "top_logprobs"),
    *("by_source", "drafted_by_source", "accepted_by_source"),
}
"""Objects whose keys are data: numbers of rows, names of peers and sources, reasons, tokens."""

TYPES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
Schema = dict[str, set[str]]


def check(name: str, value: object) -> None:
    """Hold a value's schema against golden/NAME.json, or record it there."""
    path, seen = FOLDER / f"{name}.json", Schema()
    for at, kind in _walk(value, "$"):
        seen.setdefault(at, set()).add(kind)
    recorded = (
        {at: set(kinds.split("|")) for at, kinds in json.loads(path.read_text()).items()}
        if path.exists()
        else {}
    )
    if REWRITE:
        told = {
            at: "|".join(sorted(kinds)) for at, kinds in sorted(_recorded(recorded, seen).items())
        }
        path.write_text(json.dumps(told, indent=1) + "\n")
        return
    differences = list(_differences(recorded, seen))
    assert not differences, (
        f"{path.name} differs; if that is meant, run `make golden`:\n" + "\n".join(differences)
    )


def check_facts(name: str, facts: dict[str, object]) -> None:
    """The same for facts that are recorded themselves."""
    path = FOLDER / f"{name}.json"
    if REWRITE:
        lines = [f" {json.dumps(key)}: {json.dumps(fact)}" for key, fact in facts.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert json.loads(path.read_text()) == facts, (
        f"{path.name} differs; if that is meant, run `make golden`"
    )


def _walk(value: object, at: str, key: str = "") -> Iterator[tuple[str, str]]:
    match value:
        case dict():
            yield at, "object"
            data = key in MAPPINGS
            for name, one in value.items():
                yield from _walk(one, f"{at}.*" if data else f"{at}.{name}", key if data else name)
        case list():
            yield at, "array"
            for one in value:
                yield from _walk(one, f"{at}[]", key)
        case _:
            yield at, TYPES[type(value)]


def _parent(at: str) -> str:
    return at.removesuffix("[]") if at.endswith("[]") else at.rpartition(".")[0]


def _is_data(at: str) -> bool:
    """Whether there may be none of these: items, or values of a mapping."""
    return at.endswith(("[]", ".*"))


def _differences(recorded: Schema, seen: Schema) -> Iterator[str]:
    for at, kinds in seen.items():
        if at not in recorded:
            yield f"new: {at}"
        elif kinds - recorded[at]:
            yield f"{at} is {'|'.join(sorted(kinds))}, was {'|'.join(sorted(recorded[at]))}"
    for at, kinds in recorded.items():
        if (
            at not in seen
            and "absent" not in kinds
            and not _is_data(at)
            and "object" in seen.get(_parent(at), ())
        ):
            yield f"gone: {at}"


def _recorded(recorded: Schema, seen: Schema) -> Schema:
    """What was seen, and what of it may be null or missing as was known before."""
    result = {
        at: kinds | (recorded.get(at, set()) & {"null", "absent"}) for at, kinds in seen.items()
    }
    for at in sorted(recorded.keys() - seen.keys(), key=len):
        parent = seen.get(_parent(at), set())
        unseen = _parent(at) in result and (_is_data(at) or "object" not in parent)
        if unseen or "absent" in recorded[at]:
            result[at] = recorded[at]
    return result


KEY = "sk-of-the-golden-files"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "ignore_eos": True}
RESPONSE = {"input": "hi", "max_output_tokens": 30, "ignore_eos": True}
TEXT = {"prompt": "def f(", "max_tokens": 30, "ignore_eos": True}
EVENTS = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def pair(shared: Mesh, port: int) -> dict[str, Daemon]:
    """The bundled models on llama.cpp, with a chat template; warm, so that nothing is null for lack of a round."""
    keys, template = shared.folder / "api-keys", shared.folder / "chat.jinja"
    keys.touch(0o600)
    keys.write_text(KEY)
    template.write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    options = ("--http", f"127.0.0.1:{port}", "--api-key-file", keys, "--chat-template", template)
    verifier = shared.verifier("bundled", *options, engine="llama")
    made = {"verifier": verifier, "drafter": shared.drafter("bundled", engine="llama")}
    for daemon in made.values():
        assert generate(daemon, "def f(", "--ignore-eos").code == 0
    return made


def ask(daemon: Daemon, resource: str, request: object = None) -> Answer:
    """An answer at the daemon's socket; a request is sent as JSON, or as it is where it is bytes."""
    return Served(daemon).ask("GET" if request is None else "POST", resource, request)


def answered(daemon: Daemon, resource: str, request: object = None) -> object:
    answer = ask(daemon, resource, request)
    assert answer.status == 200, answer
    return apart(answer.json())


def apart(answer: dict[str, dict[str, object]]) -> object:
    """The same without the report, which is the same everywhere and recorded once."""
    reports = answer.get("specmesh", {}).pop("report", [])
    check("report", [reports] if isinstance(reports, dict) else reports)
    return answer


def streamed(daemon: Daemon, resource: str, request: object) -> dict[str, object]:
    """The chunks of a stream: the first, those with text, the one that ends the text, the usage."""
    first, *chunks = map(apart, ask(daemon, resource, request).chunks())
    ends = [
        chunk
        for chunk in chunks
        if chunk["choices"] and chunk["choices"][0]["finish_reason"] is not None
    ]
    usage = [chunk for chunk in chunks if not chunk["choices"]]
    between = [chunk for chunk in chunks if chunk not in ends and chunk not in usage]
    return {"first": first, "text": between, "end": ends, "usage": usage}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", ()),
        ("logprobs", ("--logprobs", 2)),
        ("several", ("--n", 2)),
        ("alone", ("--draft-n", 0)),
    ],
)
def test_generate_json(pair: dict[str, Daemon], name: str, options: tuple[object, ...]):
    for daemon in pair.values():
        done = generate(daemon, "def f(", "--json", "--max-tokens", 30, "--ignore-eos", *options)
        check(f"generate-{name}", done.json)


def test_stats_and_metrics(pair: dict[str, Daemon]):
    """`stats --json` and /metrics of both, while they draft."""

    def taken() -> list[tuple[str, object, bytes]] | None:
        with Stream(pair["verifier"], body("def f(", 3500, ignore_eos=True, draft_n=4)) as stream:
            stream.read(while_=lambda: sum(stream.accepted) < 20)
            until(
                lambda: all(one.stats()["draft_n"] is not None for one in pair.values()),
                "the snapshots have it",
            )
            shown = [
                command("stats", "--json", "--socket", one.socket).json for one in pair.values()
            ]
            metrics = [ask(one, "/metrics").raw for one in pair.values()]
            lasted = all(one.stats()["draft_n"] is not None for one in pair.values())
        return (
            [(one.role, *both) for one, *both in zip(pair.values(), shown, metrics, strict=True)]
            if lasted
            else None
        )

    for role, stats, metrics in until(taken, "they draft for as long as it takes to look"):
        check(f"stats-{role}", stats)
        families = text_string_to_metric_families(metrics.decode())
        check_facts(
            f"metrics-{role}", dict(sorted((family.name, described(family)) for family in families))
        )


def described(family: Metric) -> str:
    return f"{family.type} of {', '.join(sorted({label for sample in family.samples for label in sample.labels}))}"


def test_resources(pair: dict[str, Daemon]):
    for daemon in pair.values():
        check("health", answered(daemon, "/health"))
        check("models", answered(daemon, "/v1/models"))
        check("ping", command("ping", "--json", "--count", 1, "--socket", daemon.socket).json)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("completion-plain", {}),
        ("completion-several", {"n": 2}),
        ("completion-logprobs", {"logprobs": 2}),
        ("completion-rounds", {"rounds": True}),
        ("chat-plain", {}),
        ("chat-several", {"n": 2}),
        ("chat-logprobs", {"logprobs": True, "top_logprobs": 2}),
    ],
)
def test_completions(pair: dict[str, Daemon], name: str, more: dict[str, object]):
    path, asked = (
        ("/v1/chat/completions", CHAT) if name.startswith("chat") else ("/v1/completions", TEXT)
    )
    for daemon in pair.values():
        check(name, answered(daemon, path, asked | more))
        check(f"{name}-stream", streamed(daemon, path, asked | more | EVENTS))


def test_responses(pair: dict[str, Daemon]):
    for daemon in pair.values():
        check("response", answered(daemon, "/v1/responses", RESPONSE))


ERRORS = {
    "not JSON": ("/v1/completions", b"{"),
    "no prompt": ("/v1/completions", {}),
    "a bad field": ("/v1/completions", {"prompt": "x", "temperature": "hot"}),
    "an unknown field": ("/v1/completions", {"prompt": "x", "suffix": "y"}),
    "a prompt too long": ("/v1/completions", {"prompt": [1] * 9000}),
    "another model's text": ("/v1/completions", {"resume": {"id": "cmpl-unknown"}}),
    "no messages": ("/v1/chat/completions", {"messages": []}),
    "a body too large": ("/v1/completions", b" " * (2 * 2**20 + 1)),
    "an unknown model": ("/v1/models/unknown", None),
    "an unknown resource": ("/nothing", None),
    "another method": ("/health", {}),
}


def test_errors(pair: dict[str, Daemon], port: int, mesh: Mesh):
    """What a refused request is answered with: the status, and the error object's fields but for its sentence."""
    told = {name: fields(ask(pair["verifier"], *request)) for name, request in ERRORS.items()}
    assert told == {
        name: fields(ask(pair["drafter"], *request)) for name, request in ERRORS.items()
    }
    told["no key"] = fields(Served(pair["verifier"], port).ask("GET", "/v1/models"))
    other = free_port()
    alone = mesh.drafter("", "--http", f"127.0.0.1:{other}", ready=False)
    until(lambda: is_open(other), "its port is open")  # later than its socket
    told["no verifier"] = fields(ask(alone, "/v1/completions", TEXT))
    told["another site"] = fields(
        Served(alone, other).ask("GET", "/v1/models", Origin="https://evil.example")
    )
    check_facts("errors", told)


def fields(answer: Answer) -> dict[str, object]:
    assert answer.error["message"]
    return {
        "status": answer.status,
        **{name: value for name, value in answer.error.items() if name != "message"},
    }


def test_exit_codes():
    classes = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.SpecmeshError)
    ]
    check_facts(
        "exit-codes",
        {cls.__name__: {"exit_code": cls.exit_code, "code": cls.code} for cls in classes},
    )


def test_settings():
    told = {
        role: command("config", "show", role, "--json").json["settings"]
        for role in ("verifier", "drafter")
    }
    check_facts("settings", {role: sorted(settings) for role, settings in told.items()})  # type: ignore[call-overload]
