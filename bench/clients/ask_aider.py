"""aider, as a command: a question about a file, and a change of it, by a grammar."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from work import CODE, MODEL, QUESTION, Place, output


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    changed = CODE + "    return a + b\n"
    answer = json.dumps(f"add.py\n```\n{changed}```\n")
    params = {"max_tokens": 128, "extra_body": {"grammar": f"root ::= {answer}"}}
    settings = [{"name": f"openai/{MODEL}", "edit_format": "whole", "extra_params": params}]

    def run(*words: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "add.py").write_text(CODE)
            Path(folder, "settings.yml").write_text(json.dumps(settings))
            command = [
                str(Path(sys.executable).with_name("aider")),
                "--model",
                f"openai/{MODEL}",
                *words,
                "add.py",
            ]
            command += [
                "--no-git",
                "--yes-always",
                "--no-pretty",
                "--no-show-model-warnings",
                "--map-tokens",
                "0",
            ]
            command += [
                "--model-settings-file",
                "settings.yml",
                "--no-detect-urls",
                "--message",
                QUESTION,
            ]
            told = {"OPENAI_API_BASE": place.url, "OPENAI_API_KEY": place.key, "HOME": folder}
            said = output(command, told, folder)
            assert "return a + b" in said, said[-300:]
            return Path(folder, "add.py").read_text()

    for way, told in (("--no-stream", ""), ("--stream", " stream")):
        assert run(way, "--chat-mode", "ask") == CODE
        yield f"ask{told}", "a question leaves the file"
        assert run(way) == changed
        yield f"edit{told}", changed
