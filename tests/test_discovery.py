"""Verifiers that announce themselves. Everything stays on the loopback interface."""

import builtins
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from specmesh import discover_cli, discovery
from specmesh.cli import main
from specmesh.config import VerifierSettings
from specmesh.daemons import serve
from specmesh.discovery import Announcement, announced, find, fingerprint
from specmesh.errors import ConfigError
from specmesh.keys import KeyFolder, Listing
from specmesh.wire.messages import PROTOCOL_VERSION

BOX = Announcement("bigbox", "big.gguf", "192.0.2.7", 7071, "ab" * 8)
KEY = bytes(range(32))


def discover(monkeypatch: pytest.MonkeyPatch, found: Sequence[Announcement], *args: str) -> Result:
    monkeypatch.setattr(discovery, "find", lambda *_: list(found))
    return CliRunner().invoke(main, ["discover", *args])


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyFolder:
    folder = KeyFolder(tmp_path / "keys")
    folder.new()
    monkeypatch.setattr("specmesh.keys.find_keys", lambda _: folder)
    return folder


def test_announced_and_found():
    """On the loopback interface, as it was said, for as long as it is announced."""
    pytest.importorskip("zeroconf")
    told = Announcement("big.box", "a model of ümlauts " + 300 * "x", "127.0.0.1", 7071, fingerprint(KEY))
    deadline, mine = time.monotonic() + 20.0, None
    with announced(told):
        while mine is None:
            assert time.monotonic() < deadline, "it is not found"
            mine = next((one for one in find(0.3, ["127.0.0.1"]) if one.name == "big-box-7071"), None)
    assert (mine.host, mine.port, mine.key, mine.protocol) == ("127.0.0.1", 7071, fingerprint(KEY), PROTOCOL_VERSION)
    assert told.model.startswith(mine.model)
    assert len(mine.model) > 100
    assert mine.address == "tcp://127.0.0.1:7071"


def test_what_is_found_is_a_strangers(monkeypatch: pytest.MonkeyPatch):
    """Bytes that are no text, what steers a terminal, numbers that are none: shown without harm, or not at all."""
    text = {b"model": b"\x1b[2J\xff", b"key": None, b"protocol": b"9" * 50}
    info = SimpleNamespace(name=f"a\x1bb.{discovery.SERVICE}", port=7071, properties=text)
    info.parsed_addresses = lambda: ["fe80::1"]
    told = discovery._told(info)  # type: ignore[arg-type]
    assert told is not None
    assert (told.name, told.key, told.protocol, told.address) == ("a?b", "", 0, "tcp://[fe80::1]:7071")
    assert "\x1b" not in told.model
    info.parsed_addresses = list
    assert discovery._told(info) is None  # type: ignore[arg-type]


def test_what_to_type(monkeypatch: pytest.MonkeyPatch, keys: KeyFolder):
    """How to pair; where that is done, how to connect, at whatever address: by the key that was exchanged."""
    done = discover(monkeypatch, [BOX])
    assert done.exit_code == 0, done.output
    assert "bigbox: big.gguf at tcp://192.0.2.7:7071" in done.stdout
    assert "specmesh pair 192.0.2.7 CODE" in done.stdout
    keys.allow(Listing.VERIFIERS, KEY.hex(), BOX.address)
    assert "specmesh pair" in discover(monkeypatch, [BOX]).stdout, "another key is announced than was exchanged"
    mine = Announcement("bigbox", "big.gguf", "192.0.2.7", 7071, fingerprint(KEY))
    paired = discover(monkeypatch, [mine])
    assert ("specmesh drafter --connect tcp://192.0.2.7:7071" in paired.stdout, "pair" in paired.stdout) == (
        True,
        False,
    )
    elsewhere = Announcement("bigbox", "big.gguf", "192.0.2.8", 7071, fingerprint(KEY))
    assert "--connect tcp://192.0.2.8:7071" in discover(monkeypatch, [elsewhere]).stdout
    rows = json.loads(discover(monkeypatch, [BOX, mine], "--json").stdout)["verifiers"]
    assert [row["paired"] for row in rows] == [False, True]


def test_another_protocol(monkeypatch: pytest.MonkeyPatch, keys: KeyFolder):
    """It cannot be drafted for: said, and no command."""
    told = discover(monkeypatch, [Announcement("b", "m", "192.0.2.7", 7071, protocol=1)]).stdout
    assert ("version 1" in told, "specmesh pair" in told) == (True, False)


def test_nobody_is_found(monkeypatch: pytest.MonkeyPatch, keys: KeyFolder):
    """69, and what to do."""
    done = discover(monkeypatch, [])
    assert (done.exit_code, done.stdout) == (69, "")
    assert "--announce" in done.stderr
    assert discover_cli.discover.name == "discover"


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch):
    """What to install."""
    real = builtins.__import__

    def without(name: str, *args: object) -> object:
        if name == "zeroconf":
            raise ImportError(name)
        return real(name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"specmesh\[discovery\]"):
        find(0.1)


def test_what_a_verifier_announces(monkeypatch: pytest.MonkeyPatch, keys: KeyFolder):
    """Only where it is told to: its model, where it listens, and how its key begins to be known."""
    told: list[Announcement] = []
    monkeypatch.setattr(discovery, "announced", lambda one: told.append(one) or nullcontext())
    with serve._announced("tcp://192.0.2.7:7071", "big.gguf", keys):
        pass
    [one] = told
    assert (one.model, one.address) == ("big.gguf", "tcp://192.0.2.7:7071")
    assert one.key == fingerprint(keys.identity().public)
    started: list[VerifierSettings] = []
    monkeypatch.setattr(serve, "serve_verifier", lambda settings, _: started.append(settings))
    for flags in ([], ["--announce"]):
        done = CliRunner().invoke(main, ["verifier", "--engine", "sim", "--model", "step_ms=1", *flags])
        assert done.exit_code == 0, done.output
    assert [settings.announce for settings in started] == [False, True]


def test_an_address_that_is_none():
    """Told as the setting's fault."""
    pytest.importorskip("zeroconf")
    with pytest.raises(ConfigError, match="no address"), announced(Announcement("b", "m", "no.such.host.invalid", 1)):
        pass
