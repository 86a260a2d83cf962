"""Render every shape of chat that clients send by every real chat template; nothing may be lost.

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
shape and the reasons; exit code 1 if something is lost or failed.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from command_line import Options

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from test_cache import cached_files

from specmesh.api.dialects.chat import parse_chat
from specmesh.core.fields import Json
from specmesh.core.text.chat import prompt_of
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.tool_writing import object_of
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines import chat_template, template_renderer
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
    properties = {parameter: {"type": "string", "description": "Where."}}
    schema = {"type": "object", "properties": properties, "required": [parameter]}
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

FOREIGN_ID = "call_Wm2pXkQ7Rt4LsVb9NcYd3FgH"
OTHER_FOREIGN_ID = "toolu_01A09q90qw90lq917835lq9"


def calling(content: object, *calls: Message, **more: object) -> Message:
    """Return an assistant's message with calls."""
    return said("assistant", content, tool_calls=list(calls)) | more


def parts(*texts: str) -> list[Message]:
    """Return texts as the parts of a content."""
    return [{"type": "text", "text": text} for text in texts]


def chat(*messages: Message) -> Json:
    """Return the body of a chat."""
    return {"messages": list(messages)}


def with_tools(*messages: Message) -> Json:
    """Return the body of a chat with tools."""
    return {"messages": list(messages), "tools": TOOLS}


SECOND_FIRST = (result(parts("Zqnoon"), SECOND), MILD)
THOUGHTFUL_CALL = calling("", WEATHER, reasoning_content="Ztthought.")
SHAPES: Mapping[str, Json] = {
    "user": chat(USER),
    "system": chat(SYSTEM, USER),
    "developer": chat(DEVELOPER, USER),
    "two systems": chat(SYSTEM, said("system", "Be Zqmore."), USER),
    "late system": chat(USER, ANSWER, said("system", "Be Zqlate."), AGAIN),
    "two users": chat(USER, AGAIN),
    "two assistants": chat(USER, ANSWER, said("assistant", "It is Zqtoo."), AGAIN),
    "named users": chat(said("user", "I am Zqanna.", name="anna"), ANSWER, AGAIN | {"name": "bob"}),
    "content parts": chat(
        said("system", parts("Be Zqsystem.")), said("user", parts("Zqfirst", "Zqlast"))
    ),
    "null content": with_tools(USER, calling(None, WEATHER), MILD, AGAIN),
    "tools": with_tools(SYSTEM, USER),
    "tools, no system": with_tools(USER),
    "developer, tools": with_tools(DEVELOPER, USER),
    "tool loop": with_tools(SYSTEM, USER, calling("", WEATHER), MILD),
    "parallel calls": with_tools(USER, calling("I look for Zqboth.", WEATHER, TIME), MILD, NOON),
    "result after result": with_tools(
        USER, calling(None, WEATHER, TIME), *SECOND_FIRST, ANSWER, AGAIN
    ),
    "empty arguments": with_tools(
        USER, calling("", call("Zqtime", "", FIRST)), result("Zqnoon", FIRST)
    ),
    "cut arguments": with_tools(
        USER,
        calling("", call("Zqweather", '{"city": "Par', FIRST)),
        result("Zqerror", FIRST),
        AGAIN,
    ),
    "foreign ids": with_tools(
        USER,
        calling(None, WEATHER | {"id": FOREIGN_ID}),
        result("Zqmild", FOREIGN_ID),
        calling(None, TIME | {"id": OTHER_FOREIGN_ID}),
        result("Zqnoon", OTHER_FOREIGN_ID),
    ),
    "reasoning": chat(USER, ANSWER | {"reasoning_content": "Ztthought."}, AGAIN),
    "thought and call": with_tools(SYSTEM, USER, THOUGHTFUL_CALL, MILD),
    "continued": chat(USER, said("assistant", "It is Zqbegun")),
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
    if plain is None or missing_words(sent, plain, WORD):
        return Outcome("merged")
    return Outcome("rendered")


def missing_words(sent: str, prompt: str, words: re.Pattern[str]) -> list[str]:
    """Return the words of a body that are not in the prompt."""
    return sorted({word for word in words.findall(sent) if word not in prompt})


def plainly_rendered(source: str, body: Json) -> str | None:
    """Return the template's own text of unchanged messages, None if it refuses them."""
    messages: Any = json.loads(json.dumps(body["messages"]))
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = "".join(map(itemgetter("text"), message["content"]))
        message["content"] = message["content"] or ""
        with_objects(message)
    return template_text(source, body | {"messages": messages})


def template_text(source: str, body: Json) -> str | None:
    """Return the template's own text of a body, None if it refuses the body."""
    request = {"template": source, "bos": BOS, "eos": EOS, "continued": False}
    request |= {"messages": body["messages"], "variables": {"tools": body.get("tools")}}
    text = template_renderer.answer(request).get("text")
    assert text is None or isinstance(text, str)
    return text


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
                shown = {"type": "thinking", "thinking": thought}
                message["content"] = [shown, *parts(message["content"])]
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
    """Yield the name and source of each template in the cache whose path has `only`.

    Raise SystemExit if there are none.
    """
    for path in cached_files("templates", "*/*.jinja", only):
        yield f"{path.parent.name}/{path.stem}", path.read_bytes().decode()


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
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for shape, one in found.items():
        counts[one.kind] += 1
        if one.kind in KINDS[2:]:
            bad.append(f"{shape}: {one.kind}")
    numbers = " ".join(f"{counts[kind]:>4}" for kind in KINDS)
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
    bad = False
    for outcome_of in every.values():
        for one in outcome_of.values():
            bad = bad or one.kind in {"LOST", "FAILED"}
    raise SystemExit(bad)


if __name__ == "__main__":
    main()
