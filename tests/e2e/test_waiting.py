"""Things that a daemon needs and this machine does not have yet.

By hand it ends at once and names the thing; under a service manager and with --wait it waits, names
the thing, and serves once it is there.
"""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.ports import free_port
from managers import Manager
from processes import (
    SPECMESH,
    Daemon,
    command,
    edited,
    generate,
    runtime,
    until,
)

from specmesh.paths import bundled
from specmesh.security.keys import KeyFolder

fault = pytest.mark.fault
NOWHERE = "192.0.2.5"  # of no machine: RFC 5737
OPEN = "--insecure-no-auth"


RESOLVER = """
import socket, time
real = socket.getaddrinfo
def found(host, port, *more, **options):
    known = dict(line.split() for line in open(NAMES))
    while known.get(host) == 'hangs': time.sleep(1)
    return real(known.get(host, host), port, *more, **options)
socket.getaddrinfo = found
"""


class Names:
    """Names that a daemon's resolver knows, by a file that is read for each look-up."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.know()

    def know(self, **numbers: str) -> None:
        """Let these names, without their .test, mean these numbers; "hangs" is no number."""
        self._path.write_text("".join(f"{name}.test {one}\n" for name, one in numbers.items()))

    @property
    def program(self) -> list[str]:
        """Return `specmesh` with that resolver."""
        return edited(f"NAMES = {str(self._path)!r}", RESOLVER)


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path / "names")


@pytest.fixture(params=["manager", "option"])
def waits(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ...]]:
    """The options by which a daemon waits: none under a service manager."""
    if request.param == "option":
        yield ("--wait",)
        return
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with Manager(tmp_path / "notify"):
        yield ()


def waiting_for(daemon: Daemon, words: str) -> None:
    """Check that the daemon waits for something: in its log, its API and `ps`."""
    until(lambda: words in str(daemon.events("waiting")), "it waits")
    health = until(lambda: daemon.client.get("/health"), "its API answers")
    assert health["status"] == "unavailable"
    assert words in str(health["reason"])
    assert words in daemon.stats()["waiting_for"]


def serves(daemon: Daemon) -> None:
    """Check that it has everything now, and that a text is generated."""
    daemon.ready()
    assert daemon.events("there_now")
    assert generate(daemon, "a text", max_tokens=5).code == 0


ABSENT: dict[str, tuple[tuple[str, ...], str]] = {
    "address": (("--bind", f"tcp://{NOWHERE}:7071", OPEN), NOWHERE),
    "IPv6 address": (("--bind", "tcp://[2001:db8::5]:7071", OPEN), "2001:db8::5"),
    "zone": (("--bind", "tcp://[fe80::1%25tailscale0]:7071", OPEN), "tailscale0"),
    "interface": (("--bind", "tcp://tailscale0:7071", OPEN), "tailscale0"),
    "VLAN": (("--bind", "tcp://eth7.100:7071", OPEN), "eth7.100"),
    "name": (("--bind", "tcp://nobody.invalid:7071", OPEN), "nobody.invalid"),
    "port's address": (("--http", f"{NOWHERE}:8080", "--api-key-file", "keys"), NOWHERE),
    "port's name": (("--http", "nobody.invalid:80", "--api-key-file", "keys"), "nobody.invalid"),
    "disk": (("--engine", "llama", "--model", "disk/model.gguf"), "disk/model.gguf"),
    "mount point": (("--engine", "llama", "--model", "empty/model.gguf"), "empty/model.gguf"),
    "link's end": (("--engine", "llama", "--model", "link.gguf"), "link.gguf"),
    "RPC server": (
        ("--engine", "llama", "--model", bundled("target.gguf"), "--rpc", "127.0.0.1:9"),
        "127.0.0.1:9",
    ),
    "file of settings": (("--config", "disk/verifier.toml"), "disk/verifier.toml"),
    "file of API keys": (
        ("--http", "127.0.0.1:0", "--api-key-file", "disk/api-keys"),
        "disk/api-keys",
    ),
    "folder of keys": (("--keys", "disk/keys"), "disk/keys"),
    "folder of keys, a mount point": (("--keys", "empty"), "empty"),
}


def prepare(folder: Path) -> None:
    """Put the files of a test's options into a folder."""
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text("a key")
    (folder / "empty").mkdir()
    (folder / "link.gguf").symlink_to(folder / "disk" / "model.gguf")
    (folder / "other.gguf").touch()


@pytest.mark.models
@pytest.mark.parametrize("what", ABSENT)
@fault("E7.75")
@fault("E8.100")
def test_by_hand(mesh, what):
    """It ends at once, and names the missing thing and the option that waits for it."""
    options, words = ABSENT[what]
    prepare(mesh.folder)
    mesh.cannot_start("verifier", *options, cwd=mesh.folder).refused(78, words, "--wait")


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "four numbers that are no address": (("--bind", "tcp://100.64.0.700:7071", OPEN), "address"),
    "five numbers": (("--bind", "tcp://10.0.0.0.1:7071", OPEN), "address"),
    "IPv6 with two gaps": (("--bind", "tcp://[fe80::1::2]:7071", OPEN), "address"),
    "no host": (("--bind", "tcp://:7071", OPEN), "address"),
    "a blank": (("--bind", "tcp://big box:7071", OPEN), "address"),
    "a port that is no number": (("--bind", "tcp://127.0.0.1:x", OPEN), "address"),
    "no port": (("--http", "127.0.0.1"), "HOST:PORT"),
    "no address at the port": (("--http", "300.1.1.1:80", "--api-key-file", "keys"), "HOST:PORT"),
    "a name beside models": (("--engine", "llama", "--model", "othr.gguf"), "othr.gguf"),
    "a folder": (("--engine", "llama", "--model", "empty"), "no file"),
    "no GGUF": (("--engine", "llama", "--model", "keys"), "keys"),
    "settings that are no TOML": (("--config", "keys"), "keys"),
    "a folder of settings": (("--config", "empty"), "empty"),
    "no API key": (("--http", "127.0.0.1:0", "--api-key-file", "other.gguf"), "other.gguf"),
    "API keys below a file": (("--http", "127.0.0.1:0", "--api-key-file", "keys/x"), "keys/x"),
    "a folder without a key": (("--keys", "."), "--keys ."),
    "a build without a GPU's backend": (
        ("--engine", "llama", "--model", bundled("target.gguf"), "--require-gpu"),
        "CPU",
    ),
}


@pytest.mark.models
@pytest.mark.parametrize("what", WRONG)
@fault("E7.74")
@fault("E8.100")
def test_what_never_comes_is_not_waited_for(mesh, what):
    """Wrong settings end a daemon with 78, also one that waits."""
    options, words = WRONG[what]
    prepare(mesh.folder)
    done = mesh.cannot_start("verifier", "--wait", *options, cwd=mesh.folder)
    assert done.code == 78, done
    assert words in done.err.splitlines()[-1]


@fault("E8.100")
def test_a_name_to_listen_at(mesh, names, waits):
    port = free_port()
    options = ("--bind", f"tcp://later.test:{port}", OPEN, *waits)
    verifier = mesh.verifier("step_ms=1", *options, program=names.program, ready=False)
    waiting_for(verifier, "later.test")
    names.know(later="127.0.0.1")
    serves(verifier)


@fault("E8.100")
def test_a_name_of_the_port(mesh, names, waits, role):
    """The API answers at its socket meanwhile."""
    (mesh.folder / "keys").touch(0o600)
    (mesh.folder / "keys").write_text("a key")
    where = f"later.test:{free_port()}"
    options = ("--http", where, "--api-key-file", mesh.folder / "keys", *waits)
    start = {"verifier": mesh.verifier, "drafter": mesh.drafter}[role]
    daemon = start("", *options, program=names.program, ready=False)
    waiting_for(daemon, "later.test")
    names.know(later="127.0.0.1")
    until(lambda: daemon.events("ready"), "it is ready")
    assert daemon.events("ready")[0]["http"] == where


@pytest.mark.models
@fault("E8.100")
def test_a_disk_that_is_mounted_later(mesh, waits, role):
    disk = mesh.folder / "disk"
    start = {"verifier": mesh.verifier, "drafter": mesh.drafter}[role]
    file = bundled({"verifier": "target.gguf", "drafter": "drafter.gguf"}[role])
    daemon = start(disk / "model.gguf", *waits, engine="llama", ready=False)
    waiting_for(daemon, "disk/model.gguf")
    away = mesh.folder / "away"
    away.mkdir()
    shutil.copy(file, away / "model.gguf")
    away.rename(disk)
    if role == "verifier":
        serves(daemon)
    else:
        until(lambda: daemon.events("ready"), "it is ready")


@pytest.mark.models
@fault("E8.100")
def test_a_chat_template_whose_disk_is_mounted_later(mesh, waits):
    template = mesh.folder / "disk" / "t.jinja"
    options = (*waits, "--chat-template", template)
    daemon = mesh.verifier("bundled", *options, engine="llama", ready=False)
    waiting_for(daemon, "disk/t.jinja")
    away = mesh.folder / "away"
    away.mkdir()
    (away / "t.jinja").write_text("{{ messages[0].content }}")
    away.rename(mesh.folder / "disk")
    serves(daemon)


Files = Callable[[Path], object]


def _keys_of_the_wire(disk: Path) -> None:
    KeyFolder(disk / "keys").new()


def _keys_of_the_api(disk: Path) -> None:
    (disk / "api-keys").touch(0o600)
    (disk / "api-keys").write_text("a key")


FILES: dict[str, tuple[tuple[str, ...], str, Files]] = {
    "keys": (("--keys", "disk/keys"), "disk/keys", _keys_of_the_wire),
    "API keys": (
        ("--http", "127.0.0.1:0", "--api-key-file", "disk/api-keys"),
        "disk/api-keys",
        _keys_of_the_api,
    ),
}


@pytest.mark.parametrize("what", FILES)
@fault("E8.100")
def test_a_file_whose_disk_is_mounted_later(mesh, waits, role, what):
    options, words, fill = FILES[what]
    start = {"verifier": mesh.verifier, "drafter": mesh.drafter}[role]
    paths = [option.replace("disk", str(mesh.folder / "disk")) for option in options]
    daemon = start("", *paths, *waits, ready=False)
    waiting_for(daemon, words)
    away = mesh.folder / "away"
    away.mkdir()
    fill(away)
    away.rename(mesh.folder / "disk")
    until(lambda: daemon.events("ready"), "it is ready")


@fault("E8.100")
def test_settings_whose_disk_is_mounted_later(mesh, waits):
    """Its API is not there before them: they name its socket."""
    settings = mesh.folder / "disk" / "verifier.toml"
    verifier = mesh.verifier("", "--config", settings, *waits, ready=False)
    until(lambda: "disk/verifier.toml" in str(verifier.events("waiting")), "it waits")
    away = mesh.folder / "away"
    away.mkdir()
    (away / "verifier.toml").write_text('http = "127.0.0.1:0"\n')
    away.rename(mesh.folder / "disk")
    serves(verifier)
    assert verifier.events("ready")[0]["http"] == "127.0.0.1:0"


@pytest.mark.models
@fault("E8.100")
def test_a_folder_of_models_that_is_mounted_later(mesh, waits, monkeypatch):
    """A name in it is looked for again."""
    monkeypatch.setenv("SPECMESH_MODELS_DIR", str(mesh.folder / "models"))
    program = edited(
        "import os", f"os.environ['SPECMESH_MODELS_DIR'] = {str(mesh.folder / 'models')!r}"
    )
    verifier = mesh.verifier("big", *waits, engine="llama", ready=False, program=program)
    waiting_for(verifier, "big")
    away = mesh.folder / "away"
    away.mkdir()
    shutil.copy(bundled("target.gguf"), away / "big.gguf")
    away.rename(mesh.folder / "models")
    serves(verifier)


def _in_a_network(*words: str) -> list[str]:
    """Return a command in a network of its own, in which this user may do all."""
    return ["unshare", "--net", "--map-root-user", *words]


@fault("E8.100")
def test_an_address_that_is_added_later(mesh, waits):
    able = shutil.which("unshare") and shutil.which("ip") and shutil.which("nsenter")
    if not able or subprocess.run(_in_a_network("true"), check=False).returncode:
        pytest.skip("needs Linux, and to be allowed a network of its own")
    up = 'ip link set lo up && exec "$@"'
    program = _in_a_network("sh", "-c", up, "sh", *SPECMESH)
    options = ("--bind", f"tcp://{NOWHERE}:7071", OPEN, *waits)
    verifier = mesh.verifier("step_ms=1", *options, program=program, ready=False)
    waiting_for(verifier, NOWHERE)
    inside = ["nsenter", "--target", str(verifier.pid), "--user", "--net", "--preserve-credentials"]
    subprocess.run([*inside, "ip", "address", "add", f"{NOWHERE}/32", "dev", "lo"], check=True)
    serves(verifier)


@pytest.mark.models
@fault("E8.100")
def test_an_rpc_server_that_starts_later(mesh, waits):
    where = f"127.0.0.1:{free_port()}"
    verifier = mesh.verifier("bundled", "--rpc", where, *waits, engine="llama", ready=False)
    waiting_for(verifier, where)
    with server(where):
        serves(verifier)


class server:  # noqa: N801 - used as a function
    """`specmesh rpc-server`, with these options, until the end of the context."""

    def __init__(self, where: str, *options: str, program: list[str] | None = None) -> None:
        words = [*(program or SPECMESH), "rpc-server", "--bind", where, "--threads", "1", *options]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE)

    def __enter__(self) -> "subprocess.Popen[bytes]":
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.models
def test_an_rpc_server_waits_too(names):
    where = f"later.test:{free_port()}"
    done = command("rpc-server", bind=f"{NOWHERE}:50052", insecure_rpc=True)
    done.refused(78, NOWHERE, "--wait")
    with server(where, "--wait", "--insecure-rpc", program=names.program) as process:
        assert process.stderr is not None
        assert b"later.test" in process.stderr.readline()
        names.know(later="127.0.0.1")
        assert b"there_now" in process.stderr.readline()


WAITS: dict[str, Callable[[Names], tuple[Any, ...]]] = {
    "an address": lambda _: ("--bind", f"tcp://{NOWHERE}:7071", OPEN),
    "a disk": lambda _: ("--engine", "llama", "--model", "/nowhere/model.gguf"),
    "a resolver": lambda names: ("--bind", "tcp://asleep.test:7071", OPEN),
}


@pytest.mark.parametrize("what", WAITS)
@fault("E8.87")
def test_sigterm_while_waiting(mesh, names, what):
    """Exit 0 soon, whatever a resolver does; the socket is gone."""
    names.know(asleep="hangs")
    options = WAITS[what](names)
    verifier = mesh.verifier("step_ms=1", *options, "--wait", program=names.program, ready=False)
    until(lambda: verifier.events("waiting"), "it waits")
    assert verifier.stats()["waiting_for"]
    verifier.signal(signal.SIGTERM)
    assert verifier.wait() == 0
    assert not verifier.socket.exists()
    assert "Traceback" not in verifier.text()


def test_a_manager_hears_of_it(mesh, tmp_path, monkeypatch):
    """It learns the missing thing, and that the start takes longer; not that it is ready."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with Manager(tmp_path / "notify") as manager:
        verifier = mesh.verifier("", "--bind", f"tcp://{NOWHERE}:7071", OPEN, ready=False)
        while NOWHERE not in (said := manager.until("STATUS"))["STATUS"]:
            pass
        assert said["STATUS"].startswith("waiting: cannot bind")
        assert int(said["EXTEND_TIMEOUT_USEC"]) >= 120e6
        assert not any("READY" in one for one in manager.heard)
        assert verifier.stop() == 0


def test_clients_are_told_what_is_waited_for(mesh):
    """`ps` shows it, and `generate` waits with it."""
    verifier = mesh.verifier("", "--bind", f"tcp://{NOWHERE}:7071", OPEN, "--wait", ready=False)
    waiting_for(verifier, NOWHERE)
    [shown] = command("ps", json=True, env=runtime(mesh.folder)).json["daemons"]
    assert shown["state"].startswith("waiting cannot bind")
    text = command("stats", socket=verifier.socket).out
    assert NOWHERE in text.splitlines()[1]
