"""Models that are hostile, given to the real daemons: a request is refused, and nothing else breaks."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import Mesh, generate, until
from served import Served

pytestmark = pytest.mark.models

SMALL = ("--ctx", 256, "--max-sessions", 2)


@pytest.mark.fault("E6.71")
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
