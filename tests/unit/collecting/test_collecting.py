"""The cache for tests is filled from archives with pinned checksums, and by asking MCP servers."""

import hashlib
import json
import sys
from pathlib import Path

import collect_tools
import pytest
import test_cache
from collect_tools import ServerFailed, collect
from mcp_servers import Server
from test_cache import Archive, archive_file

CONTENT = b"an archive"
DIGEST = hashlib.sha256(CONTENT).hexdigest()

SERVER = """
import json
import sys

PAGES = {None: ("first", "more"), "more": ("second", None)}


def send(**message):
    print(json.dumps({"jsonrpc": "2.0"} | message), flush=True)


print("no message at all", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        hello = asked["id"]
        send(id="roots", method="roots/list")
    if asked.get("id") == "roots" and "error" in asked:
        send(id=hello, result={"capabilities": {"tools": {}}})
    if asked.get("method") == "tools/list":
        name, cursor = PAGES[asked["params"].get("cursor")]
        send(id=asked["id"], result={"tools": [{"name": name}], "nextCursor": cursor})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The cache's folder."""
    monkeypatch.setenv(test_cache.VARIABLE, str(tmp_path))
    return tmp_path


def archive(monkeypatch, content):
    """An archive as a registry has it, pinned by DIGEST."""

    def downloaded(_archive, folder):
        path = Path(folder) / "archive"
        path.write_bytes(content)
        return path

    monkeypatch.setattr(test_cache, "_downloaded", downloaded)
    return Archive(registry="npm", name="one", version="1", sha256=DIGEST)


def test_an_archive_is_kept(monkeypatch):
    first = archive_file(archive(monkeypatch, CONTENT))
    again = archive_file(archive(monkeypatch, b"not asked for"))
    assert (again, again.read_bytes()) == (first, CONTENT)


def test_an_archive_with_another_checksum_is_not_used(monkeypatch):
    with pytest.raises(SystemExit, match="not the pinned one"):
        archive_file(archive(monkeypatch, b"another archive"))


def served(monkeypatch, folder, source):
    """A server of this source, installed."""
    script = folder / "server"
    script.write_text(f"#!{sys.executable}\n{source}")
    script.chmod(0o755)
    monkeypatch.setattr(collect_tools, "installed", lambda _: folder)
    monkeypatch.setattr(collect_tools, "executable", lambda *_: script)
    return Server("@a/server@1")


def test_all_pages_of_tools(monkeypatch, folder):
    """Lines that are no messages are passed over, and requests of the server's are refused."""
    collect(served(monkeypatch, folder, SERVER), apart=False)
    written = json.loads((folder / "tools" / "a-server.json").read_text())
    assert [tool["name"] for tool in written["tools"]] == ["first", "second"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise SystemExit('no key')", "it ended before it answered initialize: no key"),
        (SERVER.replace("result={", "error={"), "initialize: "),
        (SERVER.replace('[{"name": name}]', "[]"), "it has no tools"),
    ],
    ids=["ends", "error", "no tools"],
)
def test_a_server_that_fails(monkeypatch, folder, source, why):
    with pytest.raises(ServerFailed, match=why):
        collect(served(monkeypatch, folder, source), apart=False)
