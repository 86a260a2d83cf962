"""`specmesh models pull` from a hub on loopback that has every fault, and names of models."""

import errno
import fcntl
import json
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from harness import PATIENCE
from harness.tables import cases
from hub_server import HubServer, Models, Repo

from specmesh.errors import ConfigError, NotThereYet
from specmesh.models import pull as model_transfer
from specmesh.models.files import resolve
from specmesh.paths import models_dir

fault = pytest.mark.fault

huggingface_hub = pytest.importorskip("huggingface_hub")
RAW = bytes(range(256)) * 1200


@pytest.fixture
def hub():
    """Repositories to fill: hub.repos["owner/name"] = Repo(...)."""
    server = HubServer()
    yield server
    server.close()


@pytest.fixture
def tiny(hub):
    """The repository me/tiny with one model."""
    repo = hub.repos["me/tiny"] = Repo(files={"tiny.gguf": RAW})
    return repo


@pytest.fixture
def root(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def models(hub, root, tmp_path, monkeypatch):
    """The command `specmesh models` with this hub."""
    # huggingface_hub reads these variables once, when it is imported.
    constants = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "DOWNLOAD_CHUNK_SIZE": 1000,
        "HF_TOKEN_PATH": str(tmp_path / "no token"),
    }
    for name, value in constants.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    no_pause = SimpleNamespace(sleep=lambda _: None)
    monkeypatch.setattr("huggingface_hub.file_download.time", no_pause)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    variables = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "SPECMESH_MODELS_DIR": str(root),
    }
    yield Models(variables, tmp_path)
    huggingface_hub.close_session()


@pytest.fixture
def pull(models):
    """Pull a model; return its path."""

    def pulled(*words):
        done = models("pull", *words)
        assert (done.exit_code, done.stderr) == (0, "")
        return Path(done.stdout.removesuffix("\n"))

    return pulled


@pytest.fixture
def refuse(models):
    """Pull a model and fail with this exit code; return the error's lines."""

    def refused(exit_code, *words):
        done = models("pull", *words)
        assert (done.exit_code, done.stdout) == (exit_code, ""), done.stderr
        return done.stderr.splitlines()

    return refused


@pytest.fixture
def reports(models, hub, root, tmp_path, monkeypatch):
    """Pull me/tiny; return the reports of its progress."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", None)

    def reported():
        made = []
        model_transfer.pull("me/tiny", None, root, lambda *report: made.append(report))
        return made

    return reported


def files(root):
    return {path.name for path in root.rglob("*") if path.is_file()}


def test_progress_is_reported(tiny, reports):
    """First of the transfer, then of the checksum, up to the whole file."""
    made = reports()
    titles = list(dict.fromkeys(title for title, _, _ in made))
    assert titles == ["downloading tiny.gguf", "verifying tiny.gguf"]
    for title in titles:
        done = [bytes_ for reported, bytes_, size in made if (reported, size) == (title, len(RAW))]
        assert done == sorted(done)
        assert done[-1] == len(RAW)


def test_progress_of_a_continued_transfer(tiny, reports):
    """It begins with the bytes that are there."""
    tiny.cut = {"tiny.gguf": 100_000}
    with pytest.raises(Exception, match="kept"):
        reports()
    tiny.cut = {}
    _, done, _ = reports()[0]
    assert done > 100_000


@pytest.mark.parametrize("wanted", [True, False])
def test_the_hubs_own_setting_of_bars_holds(tiny, reports, monkeypatch, wanted):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", wanted)
    assert reports() == []


class TestGguf:
    def test_the_only_one(self, hub, pull, root):
        """Without FILE the one GGUF model is pulled."""
        others = {"README.md": b"hello", "mmproj-tiny.gguf": b"x" * 300}
        hub.repos["me/tiny"] = Repo(files=others | {"tiny.gguf": RAW})
        path = pull("me/tiny")
        assert path == root / "me/tiny/tiny.gguf"
        assert path.read_bytes() == RAW
        assert files(root) == {"tiny.gguf"}

    def test_several_are_listed(self, hub, refuse, pull):
        hub.repos["me/tiny"] = Repo(files={"tiny-Q4_0.gguf": RAW, "sub/tiny-F16.gguf": RAW * 2})
        _, *listed = refuse(2, "me/tiny")
        assert listed == ["  tiny-Q4_0.gguf (307.2 kB)", "  sub/tiny-F16.gguf (614.4 kB)"]
        assert hub.served == []
        assert pull("me/tiny", "sub/tiny-F16.gguf").match("me/tiny/sub/tiny-F16.gguf")

    def test_names_that_leave_the_folder(self, hub, refuse, root):
        names = ("../../evil.gguf", "/evil.gguf", ".hidden/x.gguf")
        hub.repos["me/evil"] = Repo(files=dict.fromkeys(names, RAW))
        refuse(2, "me/evil")
        assert files(root) == set()


class TestParts:
    @pytest.fixture
    def big(self, hub):
        """The repository me/big with a model in two parts."""
        parts = {f"big-0000{part}-of-00002.gguf": RAW + bytes([part]) for part in (1, 2)}
        repo = hub.repos["me/big"] = Repo(files=parts)
        return repo

    @fault("E7.77")
    def test_come_together(self, big, pull, root):
        path = pull("me/big")
        assert path == root / "me/big/big-00001-of-00002.gguf"
        for name, content in big.files.items():
            assert path.with_name(name).read_bytes() == content

    def test_one_that_lacks_is_named(self, big, refuse):
        del big.files["big-00002-of-00002.gguf"]
        [error] = refuse(2, "me/big")
        assert "lacks big-00002-of-00002.gguf" in error

    def test_are_placed_when_all_are_there(self, hub, big, refuse, pull, root):
        """Parts that came before the last one broke off are not fetched twice."""
        big.cut = {"big-00002-of-00002.gguf": 1}
        refuse(69, "me/big")
        assert not (root / "me/big").exists()
        hub.served.clear()
        big.cut = {}
        pull("me/big")
        assert [name for name, _, _ in hub.served] == ["big-00002-of-00002.gguf"]


class TestInterrupted:
    @pytest.mark.parametrize(
        ("now", "requested", "received"),
        [
            (Repo(files={"tiny.gguf": RAW}), "bytes=100000-", len(RAW) - 100_000),
            (Repo(files={"tiny.gguf": RAW}, no_range=True), "bytes=100000-", len(RAW)),
            (Repo(files={"tiny.gguf": RAW[::-1]}), None, len(RAW)),
        ],
        ids=["the same", "no range", "changed meanwhile"],
    )
    @fault("E7.85")
    def test_goes_on_where_it_stopped(
        self, hub, tiny, refuse, pull, root, now, requested, received
    ):
        """It starts over if Range is not honoured, or the file is another one."""
        tiny.cut = {"tiny.gguf": 100_000}
        [error] = refuse(69, "me/tiny")
        assert "100000 bytes are kept" in error
        assert not (root / "me/tiny").exists()
        hub.repos["me/tiny"] = now
        assert pull("me/tiny").read_bytes() == now.files["tiny.gguf"]
        assert hub.served[-1] == ("tiny.gguf", requested, received)

    def test_ctrl_c(self, hub, tiny, models, pull, root):
        tiny.files["tiny.gguf"] = RAW * 40
        tiny.cut = {"tiny.gguf": 11_000_000}
        tiny.stall = over = threading.Event()
        with models.start("pull", "me/tiny") as process:
            while not any(path.stat().st_size for path in root.glob(".partial/*")):
                assert not over.wait(0.01)
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=PATIENCE)
        over.set()
        assert (process.returncode, stderr) == (130, "")
        tiny.cut = {}
        assert pull("me/tiny").read_bytes() == RAW * 40
        assert hub.served[-1][1] is not None


class TestRefused:
    @fault("E7.76")
    def test_wrong_checksum(self, tiny, refuse, root):
        tiny.lie = {"tiny.gguf"}
        [error] = refuse(69, "me/tiny")
        assert "tiny.gguf" in error
        assert "checksum" in error
        assert files(root) == set()

    @cases(
        "status, code, exit_code, named",
        """
    [401, "RepoNotFound", 78, "HF_TOKEN"]
    [401, "", 78, "HF_TOKEN"]
    [403, "GatedRepo", 78, "accept the model's terms"]
    [404, "RepoNotFound", 2, "(404)"]
    [500, "", 69, "answered 500"]
    """,
    )
    @fault("E7.85")
    def test_status(self, tiny, refuse, status, code, exit_code, named):
        tiny.status = status
        tiny.code = code
        [error] = refuse(exit_code, "me/tiny")
        assert named in error

    @pytest.mark.usefixtures("tiny")
    @fault("E7.85")
    def test_no_such_file(self, refuse):
        [error] = refuse(2, "me/tiny", "other.gguf")
        assert error.endswith("it has tiny.gguf (307.2 kB)")

    @pytest.mark.parametrize("name", ["me/nobody", "../me"])
    @fault("E7.85")
    def test_no_such_model(self, refuse, name):
        refuse(2, name)

    def test_no_hub(self, hub, refuse):
        hub.close()
        [error] = refuse(69, "me/tiny")
        assert hub.url in error

    @pytest.mark.usefixtures("tiny")
    @fault("E7.85")
    def test_offline(self, hub, models):
        with models.start("pull", "me/tiny", HF_HUB_OFFLINE="1") as process:
            _, stderr = process.communicate(timeout=PATIENCE)
        [error] = stderr.splitlines()
        assert (process.returncode, hub.asked) == (69, 0)
        assert "HF_HUB_OFFLINE" in error

    @fault("E7.85")
    @fault("E5.54")
    def test_disk_full(self, hub, tiny, refuse, pull, monkeypatch):
        tiny.cut = {"tiny.gguf": 100_000}
        refuse(69, "me/tiny")
        tiny.cut = {}
        full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        with monkeypatch.context() as patch:
            patch.setattr(model_transfer, "http_get", full)
            [error] = refuse(69, "me/tiny")
        assert "is full" in error
        pull("me/tiny")
        assert hub.served[-1][1] == "bytes=100000-"


def test_one_pull_at_a_time(tiny, refuse, pull, root):
    tiny.cut = {"tiny.gguf": 1000}
    refuse(69, "me/tiny")
    tiny.cut = {}
    [partial] = (root / ".partial").iterdir()
    with partial.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refuse(75, "me/tiny")
    pull("me/tiny")


# --- models list, and names as --model


@pytest.fixture
def filled(root, tiny_gguf):
    """A folder with two GGUF models, one of them in parts, and files that are no models."""
    folder = root / "me/tiny"
    folder.mkdir(parents=True)
    for name in ("tiny-F32.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf"):
        (folder / name).write_bytes(tiny_gguf.read_bytes())
    (folder / "README.md").touch()
    (root / ".partial").mkdir()
    (root / ".partial/x.gguf").write_bytes(b"GGUF")
    return root


def test_list(filled, tiny_gguf, models):
    shown = json.loads(models("list", "--json").stdout)
    assert (shown["schema_version"], shown["folder"]) == (1, str(filled))
    size = tiny_gguf.stat().st_size
    sizes = {"me/tiny/big-00001-of-00002.gguf": 2 * size, "me/tiny/tiny-F32.gguf": size}
    assert {model["name"]: model["size_bytes"] for model in shown["models"]} == sizes
    assert shown["models"][1]["path"] == str(filled / "me/tiny/tiny-F32.gguf")


class TestResolve:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        return tmp_path

    @pytest.mark.parametrize(
        "name", ["me/tiny/tiny-F32.gguf", "tiny/tiny-F32.gguf", "tiny-F32.gguf", "tiny-F32"]
    )
    def test_names(self, filled, name):
        assert resolve(name, filled) == str(filled / "me/tiny/tiny-F32.gguf")

    def test_order(self, filled, here):
        """A whole name comes before a path, a path before the end of a name."""
        (here / "tiny-F32.gguf").touch()
        (here / "me").symlink_to("/nowhere")
        assert resolve("me/tiny/tiny-F32.gguf", filled) == str(filled / "me/tiny/tiny-F32.gguf")
        assert resolve("tiny-F32.gguf", filled) == "tiny-F32.gguf"

    def test_a_path(self, filled, here):
        path = here / "tiny-F32.gguf"
        path.touch()
        assert resolve(str(path), filled) == resolve("~/tiny-F32.gguf", filled) == str(path)

    @pytest.mark.parametrize("name", ["nothing", "{here}/nothing", "~/nothing"])
    def test_none(self, filled, here, name):
        tried = f"tried the 2 names in {filled} and the path {here}/nothing"
        with pytest.raises(ConfigError, match=tried):
            resolve(name.format(here=here), filled)

    def test_several(self, filled):
        (filled / "you").mkdir()
        (filled / "you/tiny-F32.gguf").touch()
        several = r"2 models.*me/tiny/tiny-F32.gguf, you/tiny-F32.gguf"
        with pytest.raises(ConfigError, match=several):
            resolve("tiny-F32", filled)

    def test_a_folder_in_a_home(self, here, monkeypatch):
        monkeypatch.setenv("SPECMESH_MODELS_DIR", "~/models")
        assert models_dir() == here / "models"

    @pytest.mark.parametrize("call", ["os.listdir", "Path.is_symlink"])
    def test_a_closed_folder_does_not_open(self, filled, monkeypatch, call):
        """The machine's own services cannot look into homes."""
        denied = Mock(side_effect=PermissionError(13, "Permission denied"))
        monkeypatch.setattr(f"specmesh.models.files.{call}", denied)
        with pytest.raises(ConfigError, match="homes are hidden") as raised:
            resolve("/home/ada/model.gguf", filled)
        assert not isinstance(raised.value, NotThereYet)
