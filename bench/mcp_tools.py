"""Call the tools of published MCP servers, in every form of calls.

    make tools
    python bench/mcp_tools.py [--documents N]
    python bench/mcp_tools.py --daemons [--sample N]

In each form every server's list is compiled as one request with `tool_choice: auto`, and every tool
with `required`, from the body of a chat on. `--documents` writes N calls of each tool at random and
checks their arguments by jsonschema, without the keywords that a tool's grammar ignores.
`--daemons` sends the same requests to a verifier and a drafter, of the bundled pair unless
`--target` and `--drafter` name files of the same vocabulary; they write the calls at temperature
0.7: all lists, and N tools of each form at each daemon, or all if N is 0. Prints the numbers and
all that was refused or invalid; exit code 1 if anything was.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_line import Options

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from live import Api, http_pair
from test_cache import cached_files
from validity import BYTES, Writer, repeated_names, violation, without_ignored

from specmesh.api.dialects.chat import parse_chat
from specmesh.core.fields import Json
from specmesh.core.sampling.constraint import Grammar
from specmesh.core.text.chat import with_format
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.core.text.tool_calls import ArgumentsPart, CallParser
from specmesh.core.text.tool_formats import FORMATS
from specmesh.engines.grammar import Grammars
from specmesh.errors import RequestError

FORMS = ("hermes", "qwen3_coder", "llama3", "generic")
QUESTION = {"role": "user", "content": "Do it."}
MOST = 400  # tokens of a call
CTX = 8192  # tokens that the daemons' sessions hold
SIGNS = {
    "hermes": "<tool_call>",
    "qwen3_coder": "<function= <parameter=",
    "llama3": 'start_header_id "parameters":',
    "generic": "",
}
"""Texts by which a template shows its form of calls."""


def template_of(form: str) -> str:
    """Return a small template of this form, which names the tools only: prompts stay short."""
    chat = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    if form == "generic":
        return chat
    names = "{% for t in tools or () %}{{ t.function.name }} {% endfor %}\n"
    return f"{{# {SIGNS[form]} tool_calls #}}{names}{chat}"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a server. functions: its tools as a chat has them."""

    server: str
    functions: Sequence[Json]


def function_of(tool: Mapping[str, Any]) -> Json:
    """Return an MCP tool as agents pass it on."""
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool["inputSchema"],
    }
    return {"type": "function", "function": function}


def servers(only: str) -> Iterator[Tools]:
    """Yield the lists in the cache. Raise SystemExit if there are none."""
    for path in cached_files("tools", "*.json", only):
        found = json.loads(path.read_text(encoding="utf-8"))
        yield Tools(path.stem, list(map(function_of, found["tools"])))


@dataclass(kw_only=True, slots=True)
class Count:
    """Counts of the requests of one form."""

    requests: int = 0
    valid: int = 0
    twice: int = 0  # valid calls in which an object has a name twice
    cut: int = 0  # calls that did not end
    long: int = 0  # prompts that are longer than the context
    troubles: list[str] = field(default_factory=list[str])

    def shown(self, name: str) -> str:
        """Return a row of the table."""
        refused = 0
        for trouble in self.troubles:
            refused += int(trouble.startswith("refused"))
        invalid = len(self.troubles) - refused
        row = f"{name:<26}{self.requests:>9}{self.long:>9}{refused:>9}"
        return f"{row}{self.valid:>8}{self.twice:>7}{self.cut:>6}{invalid:>9}"


HEAD = f"{'':<26} requests too long  refused   valid  twice   cut  invalid"


def body_of(functions: Sequence[Json], choice: str) -> Json:
    """Return the body of a chat with these tools."""
    return {"messages": [QUESTION], "tools": list(functions), "tool_choice": choice}


def grammar_of(body: Json, form: str) -> Grammar:
    """Return the grammar that a body leads to, for a template that calls in this form. Raise
    RequestError."""
    params = parse_chat(body).requests[0].params
    grammar = with_format(params, TemplateTraits(tool_format=form), "").grammar
    assert grammar is not None
    return grammar


class InProcess:
    """Compiles grammars as a verifier does, and writes calls at random."""

    def __init__(self, documents: int) -> None:
        self._grammars = Grammars(BYTES)
        self._documents = documents

    def close(self) -> None:
        """End the compiler's process."""
        self._grammars.close()

    def try_list(self, tools: Tools, form: str, count: Count) -> None:
        """Compile a whole list."""
        count.requests += 1
        try:
            self._grammars.compile(grammar_of(body_of(tools.functions, "auto"), form))
        except RequestError as error:
            count.troubles.append(f"refused: {tools.server}, all tools: {error}")

    def try_tool(self, server: str, tool: Json, form: str, count: Count) -> None:
        """Compile one tool, and write calls of it."""
        count.requests += 1
        name = f"{server}, {name_of(tool)}"
        try:
            grammar = grammar_of(body_of([tool], "required") | {"parallel_tool_calls": False}, form)
            self._grammars.compile(grammar)
        except RequestError as error:
            count.troubles.append(f"refused: {name}: {error}")
            return
        for seed in range(self._documents):
            self._try_document(grammar, tool, form, seed, count)

    def _try_document(
        self, grammar: Grammar, tool: Json, form: str, seed: int, count: Count
    ) -> None:
        known = FORMATS[form]
        try:
            written = Writer(seed, (known.param_end, known.end)).write(
                self._grammars.compile(grammar)
            )
        except RequestError as error:
            count.troubles.append(f"stuck: {name_of(tool)}: {error}")
            return
        if not written.complete:
            count.cut += 1
            return
        parser = CallParser(known, [function_in(tool)])
        events = parser.feed(written.text, over=True)
        arguments = ""
        for event in events:
            if isinstance(event, ArgumentsPart):
                arguments += event.text
        check(tool, arguments, count)


def function_in(tool: Json) -> Json:
    """Return a tool's function."""
    function = tool["function"]
    assert isinstance(function, dict)
    return function


def name_of(tool: Json) -> str:
    """Return a tool's name."""
    return str(function_in(tool)["name"])


def check(tool: Json, arguments: str, count: Count) -> None:
    """Check a call's arguments by the tool's schema."""
    wrong = violation(without_ignored(function_in(tool)["parameters"]), arguments)
    if wrong:
        count.troubles.append(f"invalid: {name_of(tool)}: {wrong}: {arguments[:200]}")
        return
    count.valid += 1
    count.twice += bool(repeated_names(arguments))


def compile_all(every: Sequence[Tools], forms: Sequence[str], documents: int) -> dict[str, Count]:
    """Return the counts of all lists and tools, by form."""
    trial = InProcess(documents)
    counts: dict[str, Count] = {}
    for form in forms:
        count = counts[form] = Count()
        for tools in every:
            trial.try_list(tools, form, count)
            for tool in tools.functions:
                trial.try_tool(tools.server, tool, form, count)
    trial.close()
    return counts


def ask(api: Api, body: Json, name: str, count: Count) -> Json | None:
    """Send a chat, and return its message if it ended by itself."""
    count.requests += 1
    status, answer = api.post("/chat/completions", body | {"temperature": 0.7, "seed": 1})
    if status == 400 and answer["error"]["code"] == "context_length_exceeded":
        count.long += 1
        return None
    if status != 200:
        count.troubles.append(f"refused: {name}: {status} {answer}")
        return None
    choice: Any = answer["choices"][0]
    if choice["finish_reason"] == "length":
        count.cut += 1
        return None
    return dict(choice["message"])


def ask_daemon(api: Api, every: Sequence[Tools], chosen: Sequence[tuple[str, Json]]) -> Count:
    """Return the counts of all lists and the chosen tools at a daemon."""
    count = Count()
    for tools in every:
        body = body_of(tools.functions, "auto") | {"max_tokens": 4}
        ask(api, body, f"{tools.server}, all tools", count)
    count.cut = 0  # lists were to be cut
    for server, tool in chosen:
        body = body_of([tool], "required") | {"parallel_tool_calls": False, "max_tokens": MOST}
        message: Any = ask(api, body, f"{server}, {name_of(tool)}", count)
        if message is not None:
            check(tool, message["tool_calls"][0]["function"]["arguments"], count)
    return count


def ask_all(
    every: Sequence[Tools], forms: Sequence[str], sample: int, models: tuple[str, str]
) -> dict[str, Count]:
    """Return the counts of the requests at both daemons, by form and daemon."""
    tools = list[tuple[str, Json]]()
    for one in every:
        for tool in one.functions:
            tools.append((one.server, tool))
    counts = dict[str, Count]()
    for form in forms:
        chosen = tools
        if 0 < sample < len(tools):
            chosen = random.Random(form).sample(tools, sample)
        with tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp") as folder:
            template = template_of(form)
            with http_pair(Path(folder), template=template, ctx=CTX, models=models) as apis:
                for api in apis:
                    name = f"{form}, {api.name}"
                    counts[name] = ask_daemon(api, every, chosen)
                    print(counts[name].shown(name), flush=True)
    return counts


def main() -> None:
    """Try the tools and print the table."""
    parser = Options(__doc__)
    parser.option("--only", "", "servers whose name has this text")
    parser.add_argument("--forms", default=",".join(FORMS), help="names, with commas")
    parser.option("--documents", 0, "calls of each tool to write")
    parser.switch("--daemons", "ask a real pair instead")
    parser.option("--sample", 25, "tools at each daemon; 0: all")
    parser.option("--target", "bundled", "the verifier's model")
    parser.option("--drafter", "bundled", "the drafter's model")
    options = parser.parse_args()
    every = list(servers(options.only))
    forms = options.forms.split(",")
    count_tools = sum(len(one.functions) for one in every)
    print(f"{len(every)} servers, {count_tools} tools\n{HEAD}")
    if options.daemons:
        models = (options.target, options.drafter)
        counts = ask_all(every, forms, options.sample, models)
    else:
        counts = compile_all(every, forms, options.documents)
        for form, count in counts.items():
            print(count.shown(form))
    troubles = Counter[str]()
    for count in counts.values():
        troubles.update(count.troubles)
    for trouble, times in troubles.most_common():
        print(f"{times:>4}  {trouble[:400]}")
    raise SystemExit(bool(troubles))


if __name__ == "__main__":
    main()
