"""Texts with calls of tools, as a model of a family writes them."""

import json
from itertools import pairwise
from typing import Any

from specmesh.core.text.tool_formats import ToolCall, ToolFormat, write_calls

Call = tuple[str, dict[str, Any]]


def spelt(form: ToolFormat, *calls: Call, before: str = "") -> str:
    written = [
        ToolCall("", name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls
    ]
    return before + write_calls(form, written)


def cut_up(text: str, cuts: list[int]) -> list[str]:
    return [
        text[begin:end]
        for begin, end in pairwise([0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)])
    ]
