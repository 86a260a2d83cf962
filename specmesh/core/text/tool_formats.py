"""Forms in which families of models write calls of tools, as data.

One `ToolFormat` serves four purposes, so that they cannot disagree:

- the grammar allows calls in this form only (`engines/tool_grammar.py`);
- the parser reads them (`tool_calls.py`);
- `write_calls` writes those of earlier turns, and examples in words (`tool_writing.py`);
- `detect` and `detect_written` find the form of a model by its template (`tool_detection.py`).

An example, with two calls in the form of Hermes:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Rome"}}
    </tool_call>
    <tool_call>
    {"name": "get_time", "arguments": {}}
    </tool_call>

Each call is `call` with the name and the arguments in their places. `opening` and `closing` are
empty, and `between` is a line's end. `trigger` is the first mark: only a call can follow it.
"""

# ruff: noqa: RUF001 - DeepSeek's marks have wide bars

import re
from dataclasses import dataclass

from specmesh.core.text.reasoning import STYLES
from specmesh.core.text.tool_values import GEMMA, PYTHON, ValueSyntax


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. arguments: the text of a JSON object, or the model's text instead of it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a family of models writes calls.

    opening, closing: around all calls of an answer.
    call: each call, with $NAME for the tool's name, $ARGS for its arguments, and perhaps $ID.
    ids: an expression for $ID. first_id: the number of the first call, if calls are numbered.
    between: between two calls; None if an answer has one call at most.
    trigger: the beginning of the first call. Behind it a text can only be a call. By default it is
        the first mark.
    bare: a text may begin with a call without the `opening`.
    parameter: an argument, with $KEY and $VALUE, if arguments have marks. $STRING stands for true
        if the value is a text and for false if it is JSON, $TYPE for its JSON type.
    syntax: of arguments without marks; None for a JSON object.
    tag: begins each mark around the items and members of a parameter's value; "" if these are JSON.
    never: an expression for answers that are not allowed: they would begin a call in another way.
    history: the form of earlier calls in the template, if it differs from what the model writes.
    signs: texts that are all in the source of a template whose model writes this form. By them it
        is known if the template itself writes no calls.
    """

    name: str
    call: str
    opening: str = ""
    closing: str = ""
    between: str | None = "\n"
    trigger: str = ""
    bare: bool = False
    parameter: str = ""
    syntax: ValueSyntax | None = None
    tag: str = ""
    ids: str = ""
    first_id: int = 0
    never: str = ""
    history: str = ""
    signs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.trigger:
            mark = re.split(r"(?<=[>\]])", self.start, maxsplit=1)[0]
            object.__setattr__(self, "trigger", mark)

    @property
    def head(self) -> str:
        """Return the text before a tool's name."""
        return self.call.partition("$NAME")[0]

    @property
    def after(self) -> str:
        """Return the text between a tool's name and the arguments."""
        return self.call.partition("$NAME")[2].partition("$ARGS")[0]

    @property
    def end(self) -> str:
        """Return the text after the arguments."""
        return self.call.partition("$ARGS")[2]

    @property
    def start(self) -> str:
        """Return the text before the name of the first call."""
        return self.opening + self.head

    @property
    def param_begin(self) -> str:
        """Return the text before a parameter's name."""
        return self.parameter.partition("$KEY")[0]

    @property
    def param_middle(self) -> str:
        """Return the text between a parameter's name and value, perhaps with $STRING or $TYPE."""
        return self.parameter.partition("$KEY")[2].partition("$VALUE")[0]

    @property
    def param_end(self) -> str:
        """Return the text after a parameter's value, perhaps with its $KEY."""
        return self.parameter.partition("$VALUE")[2]

    def end_of(self, name: str) -> str:
        """Return the text after the value of a parameter of this name."""
        return self.param_end.replace("$KEY", name)


ID = "$ID"
STRING = "$STRING"
TYPE = "$TYPE"
"""Placeholders in a form: see `ToolFormat`."""

NINE = "[A-Za-z0-9]{9}"
"""An expression for ids of nine letters and digits, as Mistral's models write them."""
_NUMBER = "[0-9]{1,4}"


def _glm(line: str, mark: str = "") -> str:
    """Return a parameter in GLM's form. mark: within each of its tags."""
    key = f"arg_key{mark}"
    value = f"arg_value{mark}"
    return f"<{key}>$KEY</{key}>{line}<{value}>$VALUE</{value}>{line}"


def _dsml(name: str, block: str, *signs: str) -> ToolFormat:
    """Return a form in DeepSeek's DSML, whose calls are in a block of this name."""
    mark = "｜DSML｜"
    return ToolFormat(
        name=name,
        opening=f"<{mark}{block}>\n",
        closing=f"</{mark}{block}>",
        call=f'<{mark}invoke name="$NAME">\n$ARGS</{mark}invoke>\n',
        parameter=f'<{mark}parameter name="$KEY" string="$STRING">$VALUE</{mark}parameter>\n',
        between="",
        signs=(mark, *signs),
    )


_ARRAY = '{"name": "$NAME", "arguments": $ARGS}'


def _array(name: str, opening: str, closing: str, *signs: str, call: str = _ARRAY) -> ToolFormat:
    """Return a form in which the calls of an answer are a JSON array."""
    return ToolFormat(
        name=name,
        opening=opening,
        closing=closing,
        call=call,
        between=", ",
        ids=NINE if ID in call else "",
        signs=signs,
    )


_HERMES = '<tool_call>\n{"name": "$NAME", "arguments": $ARGS}\n</tool_call>'
_ARRAY_ID = '{"name": "$NAME", "arguments": $ARGS, "id": "$ID"}'
_LLAMA = '{"name": "$NAME", "parameters": $ARGS}'
_QWEN = "<tool_call>\n<function=$NAME>\n$ARGS</function>\n</tool_call>"
_DEEPSEEK = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$NAME\n```json\n$ARGS\n```<｜tool▁call▁end｜>"
)
_DEEPSEEK31 = "<｜tool▁call▁begin｜>$NAME<｜tool▁sep｜>$ARGS<｜tool▁call▁end｜>"
_CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
_CALLS_END = "<｜tool▁calls▁end｜>"
_RECIPIENT = "<|channel|>commentary to="
_ELSEWHERE = r"(|(.|\n)*(<\|start\|>assistant|<\|channel\|>(analysis|final))) to(.|\n)*"
_MINIMAX = "]<]minimax[>["
_KIMI2 = "<|tool_call_begin|>functions.$NAME:$ID<|tool_call_argument_begin|>$ARGS<|tool_call_end|>"
_SOLAR = "<|tool_call:begin|>$ID<|tool_call:name|>$NAME<|tool_call:args|>$ARGS<|tool_call:end|>"
_KIMI3_ARGUMENT = '<|open|>argument key="$KEY" type="$TYPE"<|sep|>$VALUE<|close|>argument<|sep|>'
_COMMAND = '{"tool_call_id": "$ID", "tool_name": "$NAME", "parameters": $ARGS}'

_FORMATS = (
    ToolFormat(
        # The recipient stands before or after the channel. The grammar allows one of these places
        # only, so that a parser need not know both.
        name="harmony",
        call=f"{_RECIPIENT}functions.$NAME <|constrain|>json<|message|>$ARGS",
        history=" to=functions.$NAME<|channel|>commentary json<|message|>$ARGS",
        between=None,
        trigger=_RECIPIENT,
        never=_ELSEWHERE,  # its recipient is named in one place only
        signs=("<|channel|>", "functions."),
    ),
    ToolFormat(
        # Its marks contain all signs of qwen3_coder, so it comes first.
        name="seed",
        call=_QWEN.replace("tool_call>", "seed:tool_call>"),
        parameter="<parameter=$KEY>$VALUE</parameter>\n",
        signs=("<seed:tool_call>", "<parameter="),
    ),
    ToolFormat(
        name="qwen3_coder",
        call=_QWEN,
        parameter="<parameter=$KEY>\n$VALUE\n</parameter>\n",
        signs=("<function=", "<parameter="),
    ),
    ToolFormat(
        name="hy3",
        opening="<tool_calls:opensource>\n",
        closing="</tool_calls:opensource>",
        call="<tool_call:opensource>$NAME<tool_sep:opensource>\n$ARGS</tool_call:opensource>\n",
        parameter=_glm("\n", ":opensource"),
        between="",
        signs=("tool_calls", "arg_key", "tool_sep"),
    ),
    ToolFormat(
        # The newer form differs by a line's end only, so its sign is two marks without one in
        # between.
        name="glm47",
        call="<tool_call>$NAME$ARGS</tool_call>",
        parameter=_glm(""),
        signs=("</arg_key><arg_value>",),
    ),
    ToolFormat(
        name="glm",
        call="<tool_call>$NAME\n$ARGS</tool_call>",
        parameter=_glm("\n"),
        signs=("<arg_key>",),
    ),
    ToolFormat(
        # The older form has more marks: a template with them is never of the newer one.
        name="deepseek",
        opening=_CALLS_BEGIN,
        closing=_CALLS_END,
        call=_DEEPSEEK,
        signs=("<｜tool▁sep｜>", "```json"),
    ),
    ToolFormat(
        name="deepseek31",
        opening=_CALLS_BEGIN,
        closing=_CALLS_END,
        call=_DEEPSEEK31,
        between="",
        signs=("<｜tool▁sep｜>",),
    ),
    # Both write DSML, and differ by the name of the block.
    _dsml("deepseek32", "function_calls", "function_calls"),
    _dsml("deepseek4", "tool_calls"),
    ToolFormat(
        # Four forms begin with the same mark. Those with more marks come first.
        name="mistral_ids",
        call="[TOOL_CALLS]$NAME[CALL_ID]$ID[ARGS]$ARGS",
        between="",
        ids=NINE,
        signs=("[TOOL_CALLS]", "[CALL_ID]"),
    ),
    ToolFormat(
        name="mistral_args",
        call="[TOOL_CALLS]$NAME[ARGS]$ARGS",
        between="",
        signs=("[TOOL_CALLS]", "[ARGS]"),
    ),
    _array("mistral_array", "[TOOL_CALLS][", "]", call=_ARRAY_ID),
    _array("mistral", "[TOOL_CALLS][", "]", "[TOOL_CALLS]"),
    _array("nemotron", "<TOOLCALL>[", "]</TOOLCALL>", "<TOOLCALL>"),
    ToolFormat(
        # Its arguments are no JSON: texts have marks of their own, and names no quotes.
        name="gemma4",
        call="<|tool_call>call:$NAME{$ARGS}<tool_call|>",
        between="",
        syntax=GEMMA,
        signs=("<|tool_call>call:",),
    ),
    ToolFormat(
        # Its arguments are those of a call in Python.
        name="lfm2",
        opening="<|tool_call_start|>[",
        closing="]<|tool_call_end|>",
        call="$NAME($ARGS)",
        between=", ",
        syntax=PYTHON,
        signs=("List of tools: ",),
    ),
    ToolFormat(
        name="minimax_m2",
        opening="<minimax:tool_call>\n",
        closing="</minimax:tool_call>",
        call='<invoke name="$NAME">\n$ARGS</invoke>\n',
        parameter='<parameter name="$KEY">$VALUE</parameter>\n',
        between="",
        signs=("<minimax:tool_call>",),
    ),
    ToolFormat(
        # No signs: its templates show calls, and `detect_written` knows the form by them.
        name="minimax_m3",
        opening=f"{_MINIMAX}<tool_call>\n",
        trigger=f"{_MINIMAX}<tool_call>",
        closing=f"{_MINIMAX}</tool_call>",
        call=f'{_MINIMAX}<invoke name="$NAME">$ARGS{_MINIMAX}</invoke>\n',
        parameter=f"{_MINIMAX}<$KEY>$VALUE{_MINIMAX}</$KEY>",
        tag=_MINIMAX,
        between="",
    ),
    ToolFormat(
        name="minimax_m1",
        opening="<tool_calls>\n",
        closing="\n</tool_calls>",
        call=_ARRAY,
    ),
    _array("apriel", "<tool_calls>[", "]</tool_calls>", call=_ARRAY_ID),
    _array("jamba", "<tool_calls>[", "]</tool_calls>", "<tool_calls>["),
    ToolFormat(
        name="kimi_k2",
        opening="<|tool_calls_section_begin|>",
        closing="<|tool_calls_section_end|>",
        call=_KIMI2,
        between="",
        ids=_NUMBER,
        signs=("<|tool_calls_section_begin|>",),
    ),
    ToolFormat(
        # Each argument has its type in its mark. Without it a text of digits would be read as a
        # number.
        name="kimi_k3",
        opening="<|open|>tools<|sep|>",
        trigger="<|open|>tools<|sep|>",
        closing="<|close|>tools<|sep|>",
        call='<|open|>call tool="$NAME" index="$ID"<|sep|>$ARGS<|close|>call<|sep|>',
        parameter=_KIMI3_ARGUMENT,
        between="",
        ids=_NUMBER,
        first_id=1,
    ),
    ToolFormat(
        # The blanks belong to the form: its template indents the list, and models repeat that.
        name="command",
        opening="<|START_ACTION|>[\n    ",
        closing="\n]<|END_ACTION|>",
        call=_COMMAND,
        between=",\n    ",
        ids=_NUMBER,
        signs=("<|START_ACTION|>", "tool_call_id"),
    ),
    _array(
        "apertus",
        "<|tools_prefix|>[",
        "]<|tools_suffix|>",
        "<|tools_prefix|>",
        call='{"$NAME": $ARGS}',
    ),
    ToolFormat(
        name="solar",
        opening="<|tool_calls|>",
        call=_SOLAR,
        between="",
        ids="[a-z0-9]{10}",
        signs=("<|tool_call:begin|>",),
    ),
    # Granite's templates have the same mark, but never its end.
    _array("phi4", "<|tool_call|>[", "]<|/tool_call|>", "<|tool_call|>", "<|/tool_call|>"),
    _array("granite", "<|tool_call|>[", "]", "<|tool_call|>", "start_of_role"),
    ToolFormat(
        name="minicpm5",
        call='<function name="$NAME">$ARGS</function>',
        parameter='<param name="$KEY">$VALUE</param>',
        between="",
    ),
    ToolFormat(name="functionary", call="<function=$NAME>$ARGS</function>", between=""),
    ToolFormat(name="gigachat", call=f"<|function_call|>{_ARRAY}", between=None),
    ToolFormat(
        name="firefunction",
        opening=" functools[",
        closing="]",
        call=_ARRAY,
        between=", ",
        trigger=" functools[",
        signs=("functools[",),
    ),
    # Many of the forms above have this mark in their templates, with others. It means Hermes only
    # if no other form was found.
    ToolFormat(name="hermes", call=_HERMES, signs=("<tool_call>",)),
    ToolFormat(
        # Its templates show calls after both marks. The model writes them after the first mark, or
        # without one.
        name="llama4",
        opening="<|python_start|>",
        call=_LLAMA,
        between=None,
        bare=True,
        history=f"<|python_start|><|python_end|>{_LLAMA}",
    ),
    ToolFormat(
        # The last of those with signs: the words stand in templates that show no call at all.
        name="llama3",
        opening="<|python_tag|>",
        call=_LLAMA,
        between=None,
        bare=True,
        signs=("start_header_id", '"parameters":'),
    ),
    ToolFormat(name="generic", call=_HERMES),
)
FORMATS = {form.name: form for form in _FORMATS}
"""By their names, the most specific first."""

GENERIC = FORMATS["generic"]
"""For models whose own form is not known: `in_words` shows it to them."""

_MARK = re.compile(
    r"""<\|[^<>\s|"]*\|?> | <[^<>\s|="]+\|> | <｜[^<>\s$]*｜> | ｜DSML｜
    | </?[\w:]+> | \[/?[A-Z_]+\] | \]<\]minimax\[>\[ | <\|"\|>""",
    re.VERBOSE,
)


def _texts_of(form: ToolFormat) -> str:
    """Return all texts of a form but names and values."""
    texts = [form.opening, form.call, form.closing, form.parameter, form.tag]
    if form.syntax is not None:
        texts += form.syntax.quotes
    return "\n".join(texts)


_WRITTEN = [*map(_texts_of, FORMATS.values()), *map(repr, STYLES.values())]
TOOL_MARKS = frozenset(_MARK.findall("\n".join(_WRITTEN)))
"""Marks that may be one control token of a vocabulary, and whose text a parser has to see."""
