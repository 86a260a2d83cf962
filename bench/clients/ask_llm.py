"""Simon Willison's llm, as a command with a file that names the models."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from work import CALLED, CODE, MODEL, QUESTION, Place, called, output, program

LLM_TOOL = """
def weather(
    days: __import__("typing").Literal[1, 2, 3], unit: __import__("typing").Literal["C", "F"]
):
    print("called", days, unit)
    return "mild"
"""
"""llm takes every name of this file for a tool: an import would be one."""
LLM_OPTIONS = ["-o", "max_tokens", "128", "-o", "temperature", "0", "-o", "stop", "</tool_call>"]
"""llm lets the model choose whether it calls: after many marks of a call, this one writes one
more."""


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    with tempfile.TemporaryDirectory() as folder:
        model = {"model_name": MODEL, "api_base": place.url, "api_key_name": "specmesh"}
        models = [
            model | {"model_id": "chat"},
            model | {"model_id": "text", "completion": True},
            model | {"model_id": "caller", "supports_tools": True},
        ]
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
        Path(folder, "keys.json").write_text(json.dumps({"specmesh": place.key}))

        def run(*words: str) -> str:
            command = [program("llm"), "-o", "max_tokens", "16", *words]
            return output(command, {"LLM_USER_PATH": folder})

        brief = ("-s", "Be brief.")
        yield "chat", run("-m", "chat", "--no-stream", *brief, QUESTION)
        yield "chat stream", run("-m", "chat", QUESTION)
        yield "chat continued", run("-c", "And three?")
        caller = ["-m", "caller", "--functions", LLM_TOOL, *LLM_OPTIONS]
        for way, more in (("tools", ["--no-stream"]), ("tools stream", [])):
            printed = run(*caller, *more, "<tool_call>\n" * 30)
            CALLED.extend(re.findall("called [123] [CF]", printed))
            called(1)
            yield way, printed
        yield "completion", run("-m", "text", "--no-stream", CODE)
        yield "completion stream", run("-m", "text", CODE)
