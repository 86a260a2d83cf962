"""Where the API listens over TCP, and with which keys."""

from pathlib import Path

import pytest

from specmesh.config import parse_port, read_keys
from specmesh.errors import ConfigError


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# mine\nsk-one\n\n  sk-two \n")
    path.chmod(0o640)  # its group may: systemd's credentials look so
    return path


def test_beyond_this_machine(keys: Path):
    for text in ("0.0.0.0:80", "[::]:80", "box.local:80", "192.168.1.5:80"):
        with pytest.raises(ConfigError, match="api-key-file"):
            parse_port(text, None)
        port = parse_port(text, keys)
        assert port is not None
        assert port.keys == ("sk-one", "sk-two")


@pytest.mark.parametrize(
    "text", ["", "8080", "localhost", "localhost:", "localhost:x", "localhost:99999", ":80", "a:1/b", "[::1", "u@h:1"]
)
def test_no_port(text: str):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_port(text, None)


@pytest.mark.parametrize("raw", [b"", b"# none\n", "schlüssel\n".encode(), b"x" * 70_000, None])
def test_no_keys(keys: Path, raw: bytes | None):
    """Nor any that others can read."""
    if raw is None:
        keys.chmod(0o644)
    else:
        keys.write_bytes(raw)
    with pytest.raises(ConfigError, match="chmod 600" if raw is None else "keys"):
        read_keys(keys)


def test_origins(keys: Path):
    """Of pages; every page only where a key is asked for."""
    port = parse_port("localhost:80", None, ("https://page.example", "http://[::1]:3000", "vscode-webview://abc"))
    assert port is not None
    assert len(port.origins) == 3
    assert parse_port("localhost:80", keys, ("*",))
    for wrong in ("*", "null", "page.example", "https://page.example/", "https://*.example", ""):
        with pytest.raises(ConfigError, match="--allow-origin"):
            parse_port("localhost:80", None, (wrong,))
    with pytest.raises(ConfigError, match="--http"):
        parse_port(None, None, ("https://page.example",))
