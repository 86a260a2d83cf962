"""Does every real chat template render every shape of chat that clients send, and is nothing lost?

    make templates
    python bench/templates.py [--only NAME] [--json]

Each collected template meets 22 bodies of /v1/chat/completions, on the way that a verifier's
prompts take. Texts carry words of their own, so that a lost one is seen. A pair of template and
shape is

- rendered;
- merged: rendered, although the template refuses or loses something of the messages as they stand;
- refused, with the reason;
- LOST: a word is missing from the prompt;
- FAILED: neither a prompt nor a refusal; or a call without arguments, which is no JSON.

A thought has to be in the prompt where the template can show it. Prints a table, the totals of each
shape and the reasons; exit code 1 where something is lost or failed.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import Options

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from test_cache import cache_folder

from specmesh.api.dialects.chat import parse_chat
from specmesh.core.fields import Json
from specmesh.core.session_params import ChatMessage
from specmesh.core.text.chat import prompt_of
from specmesh.core.text.tool_formats import object_of
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines import chat_template
from specmesh.errors import ConfigError, RequestError, SpecmeshError

BOS, EOS = "<s>", "</s>"
WORD = re.compile(r"\bZq[a-z]+")  # must be in the prompt
THOUGHT = re.compile(r"\bZt[a-z]+")  # likewise, where the template can show thoughts
BROKEN = re.compile(r'"(arguments|parameters)":\s*[,}]')  # a call without arguments

Message = dict[str, Any]


def said(role: str, content: object, **more: object) -> Message:
    """Return a message."""
    return {"role": role, "content": content} | more


def call(name: str, arguments: str, call_id: str) -> Message:
    """Return a call of a tool in an assistant's message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: object, call_id: str) -> Message:
    """Return the answer of a tool."""
    return said("tool", content, tool_call_id=call_id)


def tool(name: str, parameter: str) -> Message:
    """Return a tool with one parameter."""
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string", "description": "Where."}},
        "required": [parameter],
    }
    function = {"name": name, "description": f"{name} of a Zqdescription.", "parameters": schema}
    return {"type": "function", "function": function}


USER = said("user", "What of Zquser?")
SYSTEM = said("system", "Be Zqsystem.")
DEVELOPER = said("developer", "Be Zqdeveloper.")
ANSWER = said("assistant", "It is Zqanswer.")
AGAIN = said("user", "And Zqagain?")
TOOLS = [tool("Zqweather", "city"), tool("Zqtime", "zone")]
FIRST, SECOND = "a1b2c3d4e", "f5g6h7i8j"  # ids that Mistral's templates take
WEATHER = call("Zqweather", '{"city": "Zqparis"}', FIRST)
TIME = call("Zqtime", '{"zone": "Zqcet"}', SECOND)
MILD = result("Zqmild", FIRST)
NOON = result("Zqnoon", SECOND)

SHAPES: Mapping[str, Json] = {
    "user": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "developer": {"messages": [DEVELOPER, USER]},
    "two systems": {"messages": [SYSTEM, said("system", "Be Zqmore."), USER]},
    "late system": {"messages": [USER, ANSWER, said("system", "Be Zqlate."), AGAIN]},
    "two users": {"messages": [USER, AGAIN]},
    "two assistants": {"messages": [USER, ANSWER, said("assistant", "It is Zqtoo."), AGAIN]},
    "named users": {
        "messages": [said("user", "I am Zqanna.", name="anna"), ANSWER, AGAIN | {"name": "bob"}]
    },
    "content parts": {
        "messages": [
            said("system", [{"type": "text", "text": "Be Zqsystem."}]),
            said("user", [{"type": "text", "text": "Zqfirst"}, {"type": "text", "text": "Zqlast"}]),
        ]
    },
    "null content": {
        "messages": [USER, said("assistant", None, tool_calls=[WEATHER]), MILD, AGAIN],
        "tools": TOOLS,
    },
    "tools": {"messages": [SYSTEM, USER], "tools": TOOLS},
    "tools, no system": {"messages": [USER], "tools": TOOLS},
    "developer, tools": {"messages": [DEVELOPER, USER], "tools": TOOLS},
    "tool loop": {
        "messages": [SYSTEM, USER, said("assistant", "", tool_calls=[WEATHER]), MILD],
        "tools": TOOLS,
    },
    "parallel calls": {
        "messages": [
            USER,
            said("assistant", "I look for Zqboth.", tool_calls=[WEATHER, TIME]),
            MILD,
            NOON,
        ],
        "tools": TOOLS,
    },
    "result after result": {
        "messages": [
            USER,
            said("assistant", None, tool_calls=[WEATHER, TIME]),
            result([{"type": "text", "text": "Zqnoon"}], SECOND),
            MILD,
            said("assistant", "It is Zqanswer."),
            AGAIN,
        ],
        "tools": TOOLS,
    },
    "empty arguments": {
        "messages": [
            USER,
            said("assistant", "", tool_calls=[call("Zqtime", "", FIRST)]),
            result("Zqnoon", FIRST),
        ],
        "tools": TOOLS,
    },
    "cut arguments": {
        "messages": [
            USER,
            said("assistant", "", tool_calls=[call("Zqweather", '{"city": "Par', FIRST)]),
            result("Zqerror", FIRST),
            AGAIN,
        ],
        "tools": TOOLS,
    },
    "foreign ids": {
        "messages": [
            USER,
            said("assistant", None, tool_calls=[WEATHER | {"id": "call_Wm2pXkQ7Rt4LsVb9NcYd3FgH"}]),
            result("Zqmild", "call_Wm2pXkQ7Rt4LsVb9NcYd3FgH"),
            said("assistant", None, tool_calls=[TIME | {"id": "toolu_01A09q90qw90lq917835lq9"}]),
            result("Zqnoon", "toolu_01A09q90qw90lq917835lq9"),
        ],
        "tools": TOOLS,
    },
    "reasoning": {
        "messages": [USER, ANSWER | {"reasoning_content": "Ztthought."}, AGAIN],
    },
    "thought and call": {
        "messages": [
            SYSTEM,
            USER,
            said("assistant", "", reasoning_content="Ztthought.", tool_calls=[WEATHER]),
            MILD,
        ],
        "tools": TOOLS,
    },
    "continued": {"messages": [USER, said("assistant", "It is Zqbegun")]},
}


class TemplateTokenizer:
    """The `Tokenizer` of a model with this template, whose ids are bytes."""

    def __init__(self, source: str) -> None:
        """Compile the template. Raise ConfigError."""
        self.vocabulary = Vocabulary(tuple(bytes([byte]) for byte in range(256)), frozenset())
        self.texts = {"chat_template": source, "bos_token": BOS, "eos_token": EOS}
        self._template = chat_template.ChatTemplate(source, BOS, EOS)
        self.traits = self._template.traits

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the text's bytes."""
        del special
        return list(text.encode())

    def least_ids(self, text: str) -> int:
        """Return how many ids a text has at least."""
        return len(text.encode())

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        """Return the rendered chat."""
        return self._template.render(messages, variables, continued=continued)

    def close(self) -> None:
        """End the template's process."""
        self._template.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a shape. kind: one of KINDS; why: a reason, or the lost words."""

    kind: str
    why: str = ""


def outcome(tokenizer: TemplateTokenizer, body: Json) -> Outcome:
    """Render a body on specmesh's own way, and look for its words."""
    try:
        request = parse_chat(body).requests[0]
        ids, _ = prompt_of(request, tokenizer)
    except RequestError as error:
        return Outcome("refused", str(error))
    except SpecmeshError as error:
        return Outcome("FAILED", str(error))
    except Exception as error:  # noqa: BLE001 - whatever is raised is a row of the table
        return Outcome("FAILED", f"{type(error).__name__}: {error}")
    prompt = bytes(ids).decode()
    source = tokenizer.texts["chat_template"]
    sent = json.dumps(body)
    plain = plainly_rendered(source, body)
    missing = missing_words(sent, prompt, WORD)
    if missing_words(sent, prompt, THOUGHT) and shows_thoughts(source, body):
        missing += THOUGHT.findall(sent)
    if missing:
        return Outcome("LOST", " ".join(missing))
    if BROKEN.search(prompt):
        return Outcome("FAILED", "a call without arguments")
    merged = plain is None or bool(missing_words(sent, plain, WORD))
    return Outcome("merged" if merged else "rendered")


def missing_words(sent: str, prompt: str, words: re.Pattern[str]) -> list[str]:
    """Return the words of a body that are not in the prompt."""
    return sorted({word for word in words.findall(sent) if word not in prompt})


def plainly_rendered(source: str, body: Json) -> str | None:
    """Return the template's own text of unchanged messages, None if it refuses them."""
    messages: Any = json.loads(json.dumps(body["messages"]))
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = "".join(part["text"] for part in message["content"])
        message["content"] = message["content"] or ""
        with_objects(message)
    return template_text(source, body | {"messages": messages})


def template_text(source: str, body: Json) -> str | None:
    """Return the template's own text of a body, None if it refuses the body."""
    request = {"template": source, "bos": BOS, "eos": EOS, "continued": False}
    request |= {"messages": body["messages"], "variables": {"tools": body.get("tools")}}
    text = chat_template.answer(request).get("text")
    return None if text is None else str(text)


def with_objects(message: Message) -> None:
    """Make the arguments of a message's calls objects, as most templates expect them."""
    for one in message.get("tool_calls", ()):
        arguments = object_of(one["function"]["arguments"])
        if arguments is not None:
            one["function"]["arguments"] = arguments


def shows_thoughts(source: str, body: Json) -> bool:
    """Return True if the template shows an earlier thought under one of its usual names."""
    for name in ("reasoning_content", "reasoning", "thinking", "parts"):
        changed = json.loads(json.dumps(body))
        for message in changed["messages"]:
            with_objects(message)
            thought = message.pop("reasoning_content", "")
            if thought and name == "parts":
                parts = [{"type": "thinking", "thinking": thought}]
                message["content"] = [*parts, {"type": "text", "text": message["content"]}]
            elif thought:
                message[name] = thought
        if shown_in(source, changed):
            return True
    return False


def shown_in(source: str, body: Json) -> bool:
    """Return True if the template shows a thought of these messages."""
    text = template_text(source, body) or ""
    # Some templates print a list of parts as Python has it.
    printed = "'type'" in text or '"type": "thinking"' in text
    return THOUGHT.search(text) is not None and not printed


def collected(only: str) -> Iterator[tuple[str, str]]:
    """Yield the name and source of each template in the cache whose name has `only`. Raise
    SystemExit for none."""
    folder = cache_folder("templates")
    paths = [path for path in sorted(folder.glob("*/*.jinja")) if only in str(path)]
    if not paths:
        raise SystemExit(f"no templates in {folder}: make templates")
    for path in paths:
        name = f"{path.parent.name}/{path.stem}"
        yield name, path.read_bytes().decode()


def outcomes(source: str) -> dict[str, Outcome]:
    """Return the outcome of each shape."""
    try:
        tokenizer = TemplateTokenizer(source)
    except ConfigError as error:
        return dict.fromkeys(SHAPES, Outcome("FAILED", str(error)))
    try:
        return {name: outcome(tokenizer, body) for name, body in SHAPES.items()}
    finally:
        tokenizer.close()


KINDS = ("rendered", "merged", "refused", "LOST", "FAILED")


def show_template(name: str, found: Mapping[str, Outcome]) -> None:
    """Print the row of a template, with the shapes that were not rendered."""
    counts = Counter(one.kind for one in found.values())
    numbers = " ".join(f"{counts[kind]:>4}" for kind in KINDS)
    bad = [f"{shape}: {one.kind}" for shape, one in found.items() if one.kind in KINDS[2:]]
    print(f"{name:<60}{numbers}  {'; '.join(bad)}", flush=True)


def show_totals(every: Mapping[str, Mapping[str, Outcome]]) -> None:
    """Print the totals of each shape, and for each reason how often it was given."""
    kinds = "".join(f"{kind:>10}" for kind in KINDS)
    print(f"\n{'shape':<22}{kinds}")
    total: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for shape in SHAPES:
        counts: Counter[str] = Counter()
        for found in every.values():
            one = found[shape]
            counts[one.kind] += 1
            if one.why:
                reasons[f"{one.kind}: {one.why}"] += 1
        show_counts(shape, counts)
        total += counts
    show_counts("all", total)
    print()
    for reason, count in reasons.most_common():
        print(f"{count:>6}  {reason[:150]}")


def show_counts(name: str, counts: Counter[str]) -> None:
    """Print a row of the totals."""
    numbers = "".join(f"{counts[kind]:>10}" for kind in KINDS)
    print(f"{name:<22}{numbers}")


def main() -> None:
    """Render everything and print the tables."""
    parser = Options(__doc__)
    parser.option("--only", "", "templates whose path has this text")
    parser.switch("--json", "print JSON instead of tables")
    options = parser.parse_args()
    every = dict[str, dict[str, Outcome]]()
    for name, source in collected(options.only):
        every[name] = outcomes(source)
        if not options.json:
            show_template(name, every[name])
    if options.json:
        rows = dict[str, dict[str, list[str]]]()
        for name, found in every.items():
            rows[name] = {shape: [one.kind, one.why] for shape, one in found.items()}
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        show_totals(every)
    kinds = set[str]()
    for found in every.values():
        kinds.update(one.kind for one in found.values())
    raise SystemExit(not kinds.isdisjoint({"LOST", "FAILED"}))


if __name__ == "__main__":
    main()
