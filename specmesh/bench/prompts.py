"""What a benchmark continues: a few prompts of several kinds, or a file of them."""

import json
from pathlib import Path

from specmesh.errors import ConfigError

BUILT_IN = (
    "The lighthouse keeper climbed the stairs every evening, and one night he found that",
    "def merge_sort(items: list[int]) -> list[int]:\n",
    "Photosynthesis is the process by which plants",
    "import json\nfrom pathlib import Path\n\n\nclass Settings:\n    def __init__(self, path: Path) -> None:\n",
    "Ingredients: 500 g flour, 300 ml water, 10 g salt, 5 g yeast.\nMethod:\n1.",
    "Question: Why is the sky blue?\nAnswer:",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "The capitals of Europe: France - Paris, Italy - Rome, Spain - Madrid,",
)


def read_prompts(path: Path) -> list[str]:
    """One prompt per line, or, where the first line is a JSON object, JSON lines with "prompt"; empty lines left out.

    Raises ConfigError that names the file, and the line where one is wrong.
    """
    try:
        lines = [line for line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line[1].strip()]
    except OSError as error:
        raise ConfigError(f"--prompts: {path} cannot be read ({error.strerror}): name a text file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--prompts: {path} is not UTF-8: name a text file") from None
    if not lines:
        raise ConfigError(f"--prompts: {path} has no prompts: write one on each line")
    if not isinstance(_parsed(lines[0][1]), dict):
        return [line for _, line in lines]
    return [_prompt(line, f"--prompts: {path}, line {number}") for number, line in lines]


def _prompt(line: str, where: str) -> str:
    record = _parsed(line)
    prompt = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise ConfigError(f'{where} is no JSON object with a text as "prompt": correct it')
    return prompt


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
