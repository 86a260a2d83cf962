"""A script in place of a clever model: a table from the conversation so far to the next answer.

The task is one wrong line of a file. The answers read the file, edit it with a text that the file
does not have, edit it well, and end. Agents differ in the names and arguments of their tools: the
first tools of `TOOLS` that the conversation offers are called. Without any, the answers are edits
as text where the conversation asks for those.
"""

import json
import re
from dataclasses import dataclass

FILE = "add.py"
WRONG = "return a - b"
RIGHT = "return a + b"
ABSENT = "return a * b"
"""A text that the file does not have, for an edit that fails."""
CODE = f"def add(a, b):\n    {WRONG}\n"
MENDED = CODE.replace(WRONG, RIGHT)
DONE = "The function adds now."
TITLE = "Mend add"
"""The answer to all else that agents ask, such as a title."""

TURN = "<|im_start|>"
END = "<|im_end|>"
ANSWER = f"{TURN}assistant\n"
CALL = "<tool_call>"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nCall these by <tool_call>:\n"
    "{% for tool in tools %}<tool>{{ tool | tojson }}</tool>\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or () %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template of the family whose calls are between `<tool_call>` marks."""
OFFERED = re.compile("^<tool>(.*)</tool>$", re.MULTILINE)
PATH = re.compile(rf"/[\w./-]+/{FILE}\b")

PATCH = """apply_patch <<'END'
*** Begin Patch
*** Update File: {path}
@@
-    {old}
+    {new}
*** End Patch
END"""
BLOCKS = """add.py
```python
<<<<<<< SEARCH
    {old}
=======
    {new}
>>>>>>> REPLACE
```
"""
LLM_TOOLS = '''
def read_text(path: str) -> str:
    """Return the content of a file."""
    return open(path).read()

def replace_text(file_path: str, old_string: str, new_string: str) -> str:
    """Replace a text in a file."""
    content = open(file_path).read()
    assert old_string in content, "the file does not have this text"
    open(file_path, "w").write(content.replace(old_string, new_string))
    return "done"
'''
"""Two functions for `llm`, which has no tools of its own."""
ASKS_FOR_BLOCKS = "<<<<<<< SEARCH"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool; {path}, {old} and {new} in its arguments stand for those of the task."""

    tool: str
    arguments: dict[str, str]

    def text(self, **values: str) -> str:
        """Return the call as a model writes it."""
        arguments: dict[str, str] = {}
        for name, value in self.arguments.items():
            arguments[name] = filled(value, values)
        call = json.dumps({"name": self.tool, "arguments": arguments})
        return f"{CALL}\n{call}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Tools:
    """The two calls of an agent that the task needs."""

    read: Call
    edit: Call

    def fit(self, offered: dict[str, set[str]]) -> bool:
        """Return True if tools of these names take these arguments."""
        for call in (self.read, self.edit):
            known = offered.get(call.tool, set())
            if not known.issuperset(call.arguments):
                return False
        return True


SNAKE = {"file_path": "{path}", "old_string": "{old}", "new_string": "{new}"}
CAMEL = {"filePath": "{path}", "oldString": "{old}", "newString": "{new}"}
TOOLS = (
    Tools(Call("Read", {"file_path": "{path}"}), Call("Edit", SNAKE)),  # Claude Code
    Tools(Call("Read", {"filepath": "{path}"}), Call("Edit", SNAKE)),  # Continue
    Tools(Call("read", {"filePath": "{path}"}), Call("edit", CAMEL)),  # opencode
    Tools(Call("read_file", {"file_path": "{path}"}), Call("edit", SNAKE)),  # Qwen Code
    Tools(Call("read_text", {"path": "{path}"}), Call("replace_text", SNAKE)),  # of `llm`, by us
    Tools(Call("exec_command", {"cmd": "cat {path}"}), Call("exec_command", {"cmd": PATCH})),
)


def filled(text: str, values: dict[str, str]) -> str:
    """Return a text with the values in place of their names in braces."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def answer(conversation: str) -> str:
    """Return the answer to a conversation: the rendered prompt up to the answer's beginning."""
    path = PATH.search(conversation)
    offered = offered_tools(conversation)
    for tools in TOOLS:
        if path is not None and tools.fit(offered):
            return next_call(tools, path[0], calls_made(conversation))
    if not offered and ASKS_FOR_BLOCKS in conversation:
        return next_block(conversation)
    return TITLE


def offered_tools(conversation: str) -> dict[str, set[str]]:
    """Return the names of the arguments of each tool."""
    offered: dict[str, set[str]] = {}
    for line in OFFERED.findall(conversation):
        function = json.loads(line)["function"]
        schema = function.get("parameters") or {}
        offered[function["name"]] = set(schema.get("properties", ()))
    return offered


def calls_made(conversation: str) -> int:
    """Return the number of calls in the assistant's messages."""
    calls = 0
    for turn in conversation.split(TURN):
        if turn.startswith("assistant\n"):
            calls += turn.count(CALL)
    return calls


def next_call(tools: Tools, path: str, made: int) -> str:
    """Return the call after so many others; after the last one, the end of the task."""
    match made:
        case 0:
            return tools.read.text(path=path)
        case 1:
            return tools.edit.text(path=path, old=ABSENT, new=RIGHT)
        case 2:
            return tools.edit.text(path=path, old=WRONG, new=RIGHT)
        case _:
            return DONE


def next_block(conversation: str) -> str:
    """Return an edit as text; a good one once the other has failed."""
    old = WRONG if ABSENT in conversation else ABSENT
    return filled(BLOCKS, {"old": old, "new": RIGHT})
