"""Things that a daemon needs and this machine does not have yet.

By hand it ends at once and names the thing; under a service manager and with --wait it waits, names
the thing, and serves once it is there.
"""

import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness.ports import free_port
from harness.tables import lines
from managers import Manager
from names import Names
from processes import SPECMESH, Usage, command, edited, generate, rpc_server, runtime, until

from specmesh.paths import bundled
from specmesh.security.keys import KeyFolder

fault = pytest.mark.fault
NOWHERE = "192.0.2.5"  # of no machine: RFC 5737
REQUESTS = 2000  # with 2 KiB left of each they would show
OPEN = "--insecure-no-auth"


@pytest.fixture
def names(tmp_path):
    return Names(tmp_path / "names")


def waiting_for(daemon, words):
    """Check that the daemon waits for something: in its log, its API and `ps`."""
    until(lambda: words in str(daemon.events("waiting")), "it waits")
    health = until(lambda: daemon.client.get("/health"), "its API answers")
    assert health["status"] == "unavailable"
    assert words in str(health["reason"])
    assert words in daemon.stats()["waiting_for"]


def serves(daemon):
    """Check that it has everything now, and that a text is generated."""
    daemon.ready()
    assert daemon.events("there_now")
    assert generate(daemon, "a text", max_tokens=5).code == 0


ABSENT = lines(f"""
--bind tcp://{NOWHERE}:7071 {OPEN} | {NOWHERE}
--bind tcp://[2001:db8::5]:7071 {OPEN} | 2001:db8::5
--bind tcp://[fe80::1%25tailscale0]:7071 {OPEN} | tailscale0
--bind tcp://tailscale0:7071 {OPEN} | tailscale0
--bind tcp://eth7.100:7071 {OPEN} | eth7.100
--bind tcp://nobody.invalid:7071 {OPEN} | nobody.invalid
--http {NOWHERE}:8080 --api-key-file keys | {NOWHERE}
--http nobody.invalid:80 --api-key-file keys | nobody.invalid
--engine llama --model disk/model.gguf | disk/model.gguf
--engine llama --model empty/model.gguf | empty/model.gguf
--engine llama --model link.gguf | link.gguf
--engine llama --model bundled --rpc 127.0.0.1:9 | 127.0.0.1:9
--config disk/verifier.toml | disk/verifier.toml
--http 127.0.0.1:0 --api-key-file disk/api-keys | disk/api-keys
--keys disk/keys | disk/keys
--keys empty | --keys empty
""")
"""Options and words of the error: addresses, names, disks, mount points, an RPC server."""


def refused(mesh, case, *options):
    """Run a verifier with the options of a case; return its end and the word of its error."""
    (mesh.folder / "keys").touch(0o600)
    (mesh.folder / "keys").write_text("a key")
    (mesh.folder / "empty").mkdir()
    (mesh.folder / "link.gguf").symlink_to(mesh.folder / "disk" / "model.gguf")
    (mesh.folder / "other.gguf").touch()
    words, _, named = case.partition(" | ")
    return mesh.cannot_start("verifier", *options, *shlex.split(words), cwd=mesh.folder), named


@pytest.mark.models
@pytest.mark.parametrize("case", ABSENT)
@fault("E7.75", "E8.100")
def test_by_hand(mesh, case):
    """It ends at once, and names the missing thing and the option that waits for it."""
    done, named = refused(mesh, case)
    done.refused(78, named, "--wait")


WRONG = lines(f"""
--bind tcp://100.64.0.700:7071 {OPEN} | address
--bind tcp://10.0.0.0.1:7071 {OPEN} | address
--bind tcp://[fe80::1::2]:7071 {OPEN} | address
--bind tcp://:7071 {OPEN} | address
--bind 'tcp://big box:7071' {OPEN} | address
--bind tcp://127.0.0.1:x {OPEN} | address
--http 127.0.0.1 | HOST:PORT
--http 300.1.1.1:80 --api-key-file keys | HOST:PORT
--engine llama --model othr.gguf | othr.gguf
--engine llama --model empty | is a folder
--engine llama --model keys | keys
--engine llama --model bundled --require-gpu | CPU
--config keys | keys
--config empty | empty
--http 127.0.0.1:0 --api-key-file other.gguf | other.gguf
--http 127.0.0.1:0 --api-key-file keys/x | keys/x
--keys . | --keys .
""")
"""Addresses of no form, a name beside models, a folder, no GGUF, a build without a GPU, and files
of settings or keys that are there and wrong.
"""


@pytest.mark.models
@pytest.mark.parametrize("case", WRONG)
@fault("E7.74", "E8.100")
def test_what_never_comes_is_not_waited_for(mesh, case):
    """Wrong settings end a daemon with 78, also one that waits."""
    done, named = refused(mesh, case, "--wait")
    assert done.code == 78, done
    assert named in done.err.splitlines()[-1]


@fault("E8.100")
def test_a_name_to_listen_at(mesh, names):
    options = ("--bind", f"tcp://later.test:{free_port()}", OPEN, "--wait")
    verifier = mesh.verifier("step_ms=1", *options, program=names.program, ready=False)
    waiting_for(verifier, "later.test")
    names.know(later="127.0.0.1")
    serves(verifier)


@fault("E8.100")
def test_a_name_of_the_port(mesh, names, role):
    """The API answers at its socket meanwhile."""
    keys = mesh.folder / "keys"
    keys.touch(0o600)
    keys.write_text("a key")
    where = f"later.test:{free_port()}"
    options = ("--http", where, "--api-key-file", keys, "--wait")
    daemon = getattr(mesh, role)("", *options, program=names.program, ready=False)
    waiting_for(daemon, "later.test")
    names.know(later="127.0.0.1")
    assert daemon.event("ready")["http"] == where


def mount(disk, name, content, mode=0o644):
    """Let a folder with a file come at once, as a disk does that is mounted."""
    away = disk.with_name("away")
    away.mkdir()
    (away / name).write_bytes(content)
    (away / name).chmod(mode)
    away.rename(disk)


MODEL = Path(bundled("drafter.gguf"))


@pytest.mark.models
@fault("E8.100")
def test_a_disk_that_is_mounted_later(mesh, role):
    disk = mesh.folder / "disk"
    daemon = getattr(mesh, role)(disk / "model.gguf", "--wait", engine="llama", ready=False)
    waiting_for(daemon, "disk/model.gguf")
    mount(disk, "model.gguf", MODEL.read_bytes())
    daemon.event("ready")


@pytest.mark.models
@fault("E8.100")
def test_a_chat_template_whose_disk_is_mounted_later(mesh):
    disk = mesh.folder / "disk"
    options = ("--chat-template", disk / "t.jinja", "--wait")
    daemon = mesh.verifier("bundled", *options, engine="llama", ready=False)
    waiting_for(daemon, "disk/t.jinja")
    mount(disk, "t.jinja", b"{{ messages[0].content }}")
    serves(daemon)


@fault("E8.100")
def test_a_file_of_api_keys_whose_disk_is_mounted_later(mesh, role):
    file = mesh.folder / "disk" / "api-keys"
    options = ("--http", "127.0.0.1:0", "--api-key-file", file, "--wait")
    daemon = getattr(mesh, role)("", *options, ready=False)
    waiting_for(daemon, "disk/api-keys")
    mount(file.parent, file.name, b"a key", mode=0o600)
    assert daemon.event("ready")["keys"] == 1


@fault("E8.100")
def test_keys_whose_disk_is_mounted_later(mesh, role):
    keys = mesh.folder / "keys"
    daemon = getattr(mesh, role)("", "--keys", keys, "--wait", ready=False)
    waiting_for(daemon, "no key is there")
    away = KeyFolder(mesh.folder / "away")
    away.new()
    away.path.rename(keys)
    assert daemon.event("ready")["encrypted"]


@pytest.mark.parametrize("managed", [False, True])
@fault("E8.100")
def test_settings_whose_disk_is_mounted_later(mesh, tmp_path, monkeypatch, managed):
    """Its API is not there before them: they name its socket."""
    file = mesh.folder / "disk" / "verifier.toml"
    options = ["--config", file]
    with Manager(tmp_path / "notify"):
        if managed:
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        else:
            options.append("--wait")
        verifier = mesh.verifier("", *options, ready=False)
        assert "disk/verifier.toml" in verifier.event("waiting")["what"]
        mount(file.parent, file.name, b'http = "127.0.0.1:0"')
        serves(verifier)
    assert verifier.event("ready")["http"] == "127.0.0.1:0"


@pytest.mark.models
@fault("E8.100")
def test_a_folder_of_models_that_is_mounted_later(mesh):
    """A name in it is looked for again."""
    disk = mesh.folder / "models"
    program = edited("import os", f"os.environ['SPECMESH_MODELS_DIR'] = {str(disk)!r}")
    verifier = mesh.verifier("big", "--wait", engine="llama", ready=False, program=program)
    waiting_for(verifier, "big")
    mount(disk, "big.gguf", MODEL.read_bytes())
    serves(verifier)


def _in_a_network(*words):
    """Return a command in a network of its own, in which this user may do all."""
    return ["unshare", "--net", "--map-root-user", *words]


@fault("E8.100")
def test_an_address_that_is_added_later(mesh):
    able = shutil.which("unshare") and shutil.which("ip") and shutil.which("nsenter")
    if not able or subprocess.run(_in_a_network("true"), check=False).returncode:
        pytest.skip("needs Linux, and to be allowed a network of its own")
    up = 'ip link set lo up && exec "$@"'
    program = _in_a_network("sh", "-c", up, "sh", *SPECMESH)
    options = ("--bind", f"tcp://{NOWHERE}:7071", OPEN, "--wait")
    verifier = mesh.verifier("", *options, program=program, ready=False)
    waiting_for(verifier, NOWHERE)
    inside = ["nsenter", "--target", str(verifier.pid), "--user", "--net", "--preserve-credentials"]
    subprocess.run([*inside, "ip", "address", "add", f"{NOWHERE}/32", "dev", "lo"], check=True)
    serves(verifier)


@pytest.mark.models
@fault("E8.100")
def test_an_rpc_server_that_starts_later(mesh):
    where = f"127.0.0.1:{free_port()}"
    verifier = mesh.verifier("bundled", "--rpc", where, "--wait", engine="llama", ready=False)
    waiting_for(verifier, where)
    with rpc_server(where):
        serves(verifier)


@pytest.mark.models
def test_an_rpc_server_waits_too(names):
    done = command("rpc-server", bind=f"{NOWHERE}:50052", insecure_rpc=True)
    done.refused(78, NOWHERE, "--wait")
    where = f"later.test:{free_port()}"
    with rpc_server(where, "--wait", "--insecure-rpc", program=names.program) as server:
        assert b"later.test" in server.process.stderr.readline()
        names.know(later="127.0.0.1")
        assert b"there_now" in server.process.stderr.readline()


@pytest.mark.parametrize(
    "options",
    [
        f"--bind tcp://{NOWHERE}:7071",
        "--engine llama --model /nowhere/model.gguf",
        "--bind tcp://asleep.test:7071",
    ],
)
@fault("E8.87")
def test_sigterm_while_waiting(mesh, names, options):
    """Exit 0 soon, whatever a resolver does; the socket is gone."""
    names.know(asleep="hangs")
    waits = (*options.split(), OPEN, "--wait")
    verifier = mesh.verifier("step_ms=1", *waits, program=names.program, ready=False)
    verifier.event("waiting")
    assert verifier.stats()["waiting_for"]
    verifier.signal(signal.SIGTERM)
    assert verifier.wait() == 0
    assert not verifier.socket.exists()
    assert "Traceback" not in verifier.text()


@fault("E8.100")
def test_a_manager_hears_of_it(mesh, names, tmp_path, monkeypatch):
    """It learns the missing thing, that the start takes longer, and once it is ready."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with Manager(tmp_path / "notify") as manager:
        bind = f"tcp://later.test:{free_port()}"
        mesh.verifier("", "--bind", bind, OPEN, program=names.program, ready=False)
        while "later.test" not in (told := manager.until("STATUS"))["STATUS"]:
            pass
        assert told["STATUS"].startswith("waiting: --bind")
        assert int(told["EXTEND_TIMEOUT_USEC"]) >= 120e6
        assert not any("READY" in one for one in manager.heard)
        names.know(later="127.0.0.1")
        manager.until("READY")


def test_a_wait_of_days_takes_no_memory(mesh):
    """Somebody asks for its health all the time."""
    verifier = mesh.verifier("", "--bind", f"tcp://{NOWHERE}:7071", OPEN, "--wait", ready=False)
    waiting_for(verifier, NOWHERE)
    usage = Usage(verifier.pid)
    for _ in range(REQUESTS):
        verifier.stats()
    usage.unchanged()


def test_clients_are_told_what_is_waited_for(mesh):
    """`ps` shows it, and `stats`."""
    verifier = mesh.verifier("", "--bind", f"tcp://{NOWHERE}:7071", OPEN, "--wait", ready=False)
    waiting_for(verifier, NOWHERE)
    [shown] = command("ps", json=True, env=runtime(mesh.folder)).json["daemons"]
    assert shown["state"].startswith("waiting cannot bind")
    text = command("stats", socket=verifier.socket).out
    assert NOWHERE in text.splitlines()[1]
