"""Texts with calls of tools, as a model of a family writes them."""

import json
from typing import Any

from specmesh.core.tool_calls import ToolFormat

Call = tuple[str, dict[str, Any]]


def spelt(form: ToolFormat, *calls: Call, before: str = "") -> str:
    return (
        before
        + form.start
        + ((form.between or "") + form.head).join(_call(form, *one) for one in calls)
        + form.closing
    )


def _call(form: ToolFormat, name: str, arguments: dict[str, Any]) -> str:
    if not form.param_begin:
        return name + form.after + json.dumps(arguments, ensure_ascii=False) + form.end
    values = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in arguments.items()
    }
    parts = [
        form.param_begin + key + form.param_middle + value + form.param_end
        for key, value in values.items()
    ]
    return name + form.after + "".join(parts) + form.end
