"""aider, as a command: a question about a file, and a change of it, by a grammar."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from work import CODE, MODEL, QUESTION, Place, output, program

QUIET = ["--no-git", "--yes-always", "--no-pretty", "--no-show-model-warnings", "--no-detect-urls"]
SETTINGS = ["--map-tokens", "0", "--model-settings-file", "settings.yml"]


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    changed = CODE + "    return a + b\n"
    answer = json.dumps(f"add.py\n```\n{changed}```\n")
    params = {"max_tokens": 128, "extra_body": {"grammar": f"root ::= {answer}"}}
    settings = [{"name": f"openai/{MODEL}", "edit_format": "whole", "extra_params": params}]

    def run(*words: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "add.py")
            file.write_text(CODE)
            Path(folder, "settings.yml").write_text(json.dumps(settings))
            command = [program("aider"), "--model", f"openai/{MODEL}", *words, "add.py"]
            command += [*QUIET, *SETTINGS, "--message", QUESTION]
            variables = {"OPENAI_API_BASE": place.url, "OPENAI_API_KEY": place.key}
            printed = output(command, variables | {"HOME": folder}, folder)
            assert "return a + b" in printed, printed[-300:]
            return file.read_text()

    for way, name in (("--no-stream", ""), ("--stream", " stream")):
        assert run(way, "--chat-mode", "ask") == CODE
        yield f"ask{name}", "a question leaves the file"
        assert run(way) == changed
        yield f"edit{name}", changed
