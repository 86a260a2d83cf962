"""Models that are damaged, hostile or unfit, given to the real daemons: a line names them, and nothing else breaks."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import Mesh, generate, until
from served import Served

pytestmark = pytest.mark.models

SMALL = ("--ctx", 256, "--max-sessions", 2)
fault = pytest.mark.fault


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        pytest.param("missing.gguf", lambda path, raw: None, "", marks=fault("E7.75")),
        pytest.param("directory.gguf", lambda path, raw: path.mkdir(), "", marks=fault("E7.75")),
        pytest.param("loop.gguf", lambda path, raw: path.symlink_to(path), "", marks=fault("E7.75")),
        pytest.param("cut.gguf", lambda path, raw: path.write_bytes(raw[:-64]), "incomplete", marks=fault("E7.76")),
        pytest.param("m-00001-of-00002.gguf", Path.write_bytes, "m-00002-of-00002.gguf is missing",
                     marks=fault("E7.77")),
    ],
)  # fmt: skip
def test_no_model(tiny_gguf: Path, mesh: Mesh, name: str, make: Callable[[Path, bytes], object], why: str):
    """The path is named and what is wrong; a missing part is not taken for a damage."""
    path = mesh.folder / name
    make(path, tiny_gguf.read_bytes())
    mesh.cannot_start("verifier", "--engine", "llama", "--model", path).refused(78, path, why)


@fault("E6.71")
@pytest.mark.parametrize(
    ("template", "status", "why"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", 400, "chat template refuses"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", 500, "more than 3 s"),
    ],
    ids=["reaches out", "without end"],
)
def test_bad_template(tiny_gguf: Path, mesh: Mesh, template: str, status: int, why: str):
    """The request is refused, at the latest after the 3 seconds that a template may take; the daemon serves."""
    path = mesh.folder / "template.jinja"
    path.write_text(template)
    verifier = mesh.verifier(tiny_gguf, *SMALL, "--chat-template", path, engine="llama")
    with ThreadPoolExecutor() as clients:
        chat = clients.submit(Served(verifier).chat)
        assert generate(verifier, "hello", "--max-tokens", 3).code == 0
    until(lambda: verifier.live() == 0, "no session is left")
    assert (chat.result().status, why in str(chat.result().error["message"])) == (status, True)
