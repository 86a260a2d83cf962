"""Models that are damaged, hostile or unfit, given to the real daemons: a line names them, and nothing else breaks."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Daemon, Done, Mesh, body, complete, generate, request_raw, until

from specmesh.paths import bundled

pytestmark = pytest.mark.models

SMALL = ("--ctx", 256, "--max-sessions", 2)
BUNDLED = ("--engine", "llama", "--model", "bundled")
CHAT = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}'


def number(raw: bytes, key: bytes, new: int) -> bytes:
    """The same file with another number for a key."""
    at = raw.index(key) + len(key) + 4
    return raw[:at] + new.to_bytes(4, "little") + raw[at + 4 :]


@pytest.mark.fault("E7.76")
@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda raw: raw[:-64], "corrupted or incomplete"),
        (lambda raw: number(raw, b"llama.block_count", 3), "blk.2"),
    ],
    ids=["cut at the end", "more layers than weights"],
)
def test_damaged(tiny_gguf: Path, mesh: Mesh, harm: Callable[[bytes], bytes], why: str):
    """Whether our look at the header finds it, or llama.cpp's loader."""
    path = mesh.folder / "bad.gguf"
    path.write_bytes(harm(tiny_gguf.read_bytes()))
    mesh.cannot_start("verifier", "--engine", "llama", "--model", path).refused(78, path, why)


@pytest.mark.fault("E7.77")
def test_missing_part(tiny_gguf: Path, mesh: Mesh):
    """Not taken for a damage."""
    path = mesh.folder / "m-00001-of-00002.gguf"
    path.write_bytes(tiny_gguf.read_bytes())
    done = mesh.cannot_start("verifier", "--engine", "llama", "--model", path)
    done.refused(78, path, "m-00002-of-00002.gguf is missing")


@pytest.mark.fault("E7.75")
@pytest.mark.parametrize("kind", ["missing", "directory", "loop"])
def test_no_file(mesh: Mesh, kind: str):
    path = mesh.folder / "model.gguf"
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    mesh.cannot_start("verifier", "--engine", "llama", "--model", path).refused(78, path)


@pytest.mark.fault("E7.82")
def test_gpu_required(mesh: Mesh):
    """A slow run never passes for a fast one."""
    done = mesh.cannot_start("verifier", *BUNDLED, "--gpu", "required", "--gpu-layers", 0)
    done.refused(78, "GPU is required")


@pytest.mark.fault("E7.79")
def test_a_target_that_cannot_be_cut(mesh: Mesh):
    """No draft is verified, the text is the target's own."""
    verifier = mesh.verifier("step_ms=1,can_trim=0")
    mesh.drafter()
    result = complete(verifier, body("hello", 20))
    assert result.ids == complete(verifier, body("hello", 20, draft_n=0)).ids
    assert sum(result.accepted) == 0
    assert [line["speculation"] for line in verifier.events("ready")] == [False]


@pytest.fixture
def templated(tiny_gguf: Path, mesh: Mesh) -> Callable[[str], Daemon]:
    """A verifier on a tiny model with this chat template."""

    def verifier(template: str) -> Daemon:
        path = mesh.folder / "template.jinja"
        path.write_text(template)
        return mesh.verifier(tiny_gguf, *SMALL, "--chat-template", path, engine="llama")

    return verifier


@pytest.mark.fault("E6.71")
def test_template_that_reaches_out(templated: Callable[[str], Daemon]):
    """The request is refused, the daemon serves."""
    verifier = templated("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    status, _, answer = request_raw(verifier.socket, "POST", "/v1/chat/completions", CHAT)
    assert (status, b"chat template refuses" in answer) == (400, True)
    assert generate(verifier, "hello", "--max-tokens", 3).code == 0


@pytest.mark.fault("E6.71")
def test_template_without_end(templated: Callable[[str], Daemon]):
    """Takes as long as a template may take: 3 seconds."""
    verifier = templated("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    answers: list[tuple[int, dict[str, str], bytes]] = []
    chat = threading.Thread(
        target=lambda: answers.append(request_raw(verifier.socket, "POST", "/v1/chat/completions", CHAT))
    )
    chat.start()
    assert generate(verifier, "hello", "--max-tokens", 3).code == 0
    chat.join()
    until(lambda: verifier.live() == 0, "no session is left")
    ((status, _, answer),) = answers
    assert (status, b"more than 3 s" in answer) == (500, True)


@pytest.mark.fault("E7.76")
def test_cut_while_in_use(mesh: Mesh, role: str):
    """To compute with what is gone is a bus error, on several threads at once: one line, and the other side goes on."""
    cut = mesh.folder / "cut.gguf"
    shutil.copy(bundled("target.gguf"), cut)
    models = {"verifier": bundled("target.gguf"), "drafter": bundled("drafter.gguf"), role: cut}
    verifier = mesh.verifier(models["verifier"], *SMALL, "--threads", 2, engine="llama")
    drafter = mesh.drafter(models["drafter"], *SMALL, "--threads", 2, engine="llama")
    os.truncate(cut, 4096)
    done = generate(verifier, "def main(", "--max-tokens", 30, "--draft-n", 2, "--reconnect-timeout", 0)
    assert done.code == (69 if role == "verifier" else 0)
    broken = verifier if role == "verifier" else drafter
    Done(broken.wait(), "", broken.text()).refused(78, cut)
