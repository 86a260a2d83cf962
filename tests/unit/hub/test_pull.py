"""`specmesh models pull` over real sockets, from a hub on loopback with every fault a hub can have; `models list`,
and names as --model."""

import errno
import fcntl
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from harness import PATIENCE
from hub_server import HubServer, Models, Repo

from specmesh.errors import ConfigError, NotThereYet
from specmesh.models import pull as model_transfer
from specmesh.models import resolve
from specmesh.paths import models_dir

huggingface_hub = pytest.importorskip("huggingface_hub")
RAW = bytes(range(256)) * 1200
"""A file of 307,200 bytes."""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """Repositories to fill: hub.repos["owner/name"] = Repo(...)."""
    server = HubServer()
    yield server
    server.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def models(
    hub: HubServer, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Models]:
    """The command, with the hub on loopback as its hub."""
    # huggingface_hub reads these variables once, when it is imported; a process of its own gets them as variables.
    told = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
    }
    told |= {
        "HF_HUB_OFFLINE": False,
        "DOWNLOAD_CHUNK_SIZE": 1000,
        "HF_TOKEN_PATH": str(tmp_path / "no token"),
    }
    for name, value in told.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    no_pause = SimpleNamespace(sleep=lambda _: None)  # between two tries
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


class TestGguf:
    def test_the_only_one(self, hub: HubServer, models: Models, root: Path) -> None:
        """Without FILE the one GGUF model comes, alone; its path is all of stdout; nothing is on stderr."""
        hub.repos["me/tiny"] = Repo(
            {"README.md": b"hello", "tiny.gguf": RAW, "mmproj-tiny.gguf": b"x" * 300}
        )
        done = models("pull", "me/tiny")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == f"{root / 'me/tiny/tiny.gguf'}\n"
        assert (root / "me/tiny/tiny.gguf").read_bytes() == RAW
        assert hub.served == [("tiny.gguf", None, len(RAW))]
        assert not [*(root / ".partial").iterdir()]

    def test_several_are_listed(self, hub: HubServer, models: Models) -> None:
        hub.repos["me/tiny"] = Repo({"tiny-Q4_0.gguf": RAW, "sub/tiny-F16.gguf": RAW * 2})
        done = models("pull", "me/tiny")
        assert (done.exit_code, done.stdout, hub.served) == (2, "", [])
        assert done.stderr.splitlines()[1:] == [
            "  tiny-Q4_0.gguf (307.2 kB)",
            "  sub/tiny-F16.gguf (614.4 kB)",
        ]
        assert models("pull", "me/tiny", "sub/tiny-F16.gguf").stdout.endswith(
            "me/tiny/sub/tiny-F16.gguf\n"
        )

    @pytest.mark.fault("E7.77")
    def test_parts_come_together(self, hub: HubServer, models: Models, root: Path) -> None:
        parts = {f"big-0000{part}-of-00003.gguf": RAW + bytes([part]) for part in (1, 2, 3)}
        hub.repos["me/big"] = Repo(parts)
        assert models("pull", "me/big").stdout == f"{root / 'me/big/big-00001-of-00003.gguf'}\n"
        assert {path.name: path.read_bytes() for path in (root / "me/big").glob("*.gguf")} == parts
        del parts["big-00002-of-00003.gguf"]
        assert "lacks big-00002-of-00003.gguf" in models("pull", "me/big").stderr

    def test_nothing_is_placed_before_all_is_there(
        self, hub: HubServer, models: Models, root: Path
    ) -> None:
        """A model whose last part broke off does not exist yet, and what came of it is not fetched twice."""
        parts = {f"big-0000{part}-of-00002.gguf": RAW + bytes([part]) for part in (1, 2)}
        hub.repos["me/big"] = Repo(parts, cut={"big-00002-of-00002.gguf": 1})
        assert models("pull", "me/big").exit_code == 69
        assert not (root / "me/big").exists()
        before = len(hub.served)
        hub.repos["me/big"].cut.clear()
        assert models("pull", "me/big").exit_code == 0
        assert [name for name, _, _ in hub.served[before:]] == ["big-00002-of-00002.gguf"]

    def test_names_that_leave_the_folder(self, hub: HubServer, models: Models, root: Path) -> None:
        hub.repos["me/evil"] = Repo(
            {"../../evil.gguf": RAW, "/evil.gguf": RAW, ".hidden/x.gguf": RAW}
        )
        assert models("pull", "me/evil").exit_code == 2
        assert not list(root.rglob("*.gguf"))


class TestInterrupted:
    @pytest.mark.parametrize(
        ("now", "asked", "came"),
        [
            (Repo({"tiny.gguf": RAW}), "bytes=100000-", len(RAW) - 100_000),
            (Repo({"tiny.gguf": RAW}, no_range=True), "bytes=100000-", len(RAW)),
            (Repo({"tiny.gguf": RAW[::-1]}), None, len(RAW)),
        ],
        ids=["the same", "no range", "changed meanwhile"],
    )
    @pytest.mark.fault("E7.85")
    def test_goes_on_where_it_stopped(
        self, hub: HubServer, models: Models, root: Path, now: Repo, asked: str | None, came: int
    ) -> None:
        """Or starts over where Range is not honoured, or the file is another one."""
        hub.repos["me/tiny"] = Repo({"tiny.gguf": RAW}, cut={"tiny.gguf": 100_000})
        broken = models("pull", "me/tiny")
        assert (broken.exit_code, broken.stdout, len(broken.stderr.splitlines())) == (69, "", 1)
        assert "100000 bytes are kept" in broken.stderr
        assert not (root / "me/tiny").exists()
        hub.repos["me/tiny"] = now
        done = models("pull", "me/tiny")
        assert (done.exit_code, Path(done.stdout.strip()).read_bytes()) == (
            0,
            now.files["tiny.gguf"],
        )
        assert hub.served[-1] == ("tiny.gguf", asked, came)

    def test_ctrl_c(self, hub: HubServer, models: Models, root: Path) -> None:
        over, large = threading.Event(), RAW * 40
        hub.repos["me/tiny"] = Repo({"tiny.gguf": large}, cut={"tiny.gguf": 11_000_000}, stall=over)
        with models.start("pull", "me/tiny") as process:
            while not sum(path.stat().st_size for path in root.glob(".partial/*")):
                assert not over.wait(0.01)
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        over.set()
        assert (process.returncode, err) == (130, "")
        hub.repos["me/tiny"].cut.clear()
        assert Path(models("pull", "me/tiny").stdout.strip()).read_bytes() == large
        assert hub.served[-1][1] is not None


class TestRefused:
    @pytest.mark.fault("E7.76")
    def test_wrong_checksum(self, hub: HubServer, models: Models, root: Path) -> None:
        hub.repos["me/tiny"] = Repo({"tiny.gguf": RAW}, lie={"tiny.gguf"})
        done = models("pull", "me/tiny")
        assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (69, "", 1)
        assert "tiny.gguf" in done.stderr
        assert "checksum" in done.stderr
        assert not [path for path in root.rglob("*") if path.is_file()]

    @pytest.mark.parametrize(
        ("status", "code", "exit_code", "said"),
        [
            (401, "RepoNotFound", 78, "HF_TOKEN"),
            (401, "", 78, "HF_TOKEN"),
            (403, "GatedRepo", 78, "accept the model's terms"),
            (404, "RepoNotFound", 2, "(404)"),
            (500, "", 69, "answered 500"),
        ],
    )
    @pytest.mark.fault("E7.85")
    def test_status(
        self, hub: HubServer, models: Models, status: int, code: str, exit_code: int, said: str
    ) -> None:
        hub.repos["me/tiny"] = Repo({"tiny.gguf": RAW}, status=status, code=code)
        done = models("pull", "me/tiny")
        assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (exit_code, "", 1), (
            done.stderr
        )
        assert said in done.stderr

    @pytest.mark.fault("E7.85")
    def test_no_such_file_or_model(self, hub: HubServer, models: Models) -> None:
        hub.repos["me/tiny"] = Repo({"tiny.gguf": RAW})
        done = models("pull", "me/tiny", "other.gguf")
        assert (done.exit_code, "tiny.gguf (307.2 kB)" in done.stderr) == (2, True)
        assert models("pull", "me/nobody").exit_code == 2
        assert models("pull", "../me").exit_code == 2

    def test_no_hub(self, hub: HubServer, models: Models) -> None:
        hub.close()
        done = models("pull", "me/tiny")
        assert (done.exit_code, len(done.stderr.splitlines())) == (69, 1)
        assert hub.url in done.stderr

    @pytest.mark.fault("E7.85")
    def test_offline(self, hub: HubServer, models: Models) -> None:
        hub.repos["me/tiny"] = Repo({"tiny.gguf": RAW})
        with models.start("pull", "me/tiny", HF_HUB_OFFLINE="1") as process:
            _, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, len(err.splitlines()), hub.asked) == (69, 1, 0)
        assert "HF_HUB_OFFLINE" in err

    @pytest.mark.fault("E7.85")
    @pytest.mark.fault("E5.54")
    def test_disk_full(
        self, hub: HubServer, models: Models, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.repos["me/tiny"] = Repo({"tiny.gguf": RAW}, cut={"tiny.gguf": 100_000})
        assert models("pull", "me/tiny").exit_code == 69
        hub.repos["me/tiny"].cut.clear()
        full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        with monkeypatch.context() as patch:
            patch.setattr(model_transfer, "http_get", full)
            done = models("pull", "me/tiny")
        assert (done.exit_code, len(done.stderr.splitlines())) == (69, 1), done.stderr
        assert "is full" in done.stderr
        assert models("pull", "me/tiny").exit_code == 0
        assert hub.served[-1][1] == "bytes=100000-"


def test_one_pull_at_a_time(hub: HubServer, models: Models, root: Path) -> None:
    hub.repos["me/tiny"] = Repo({"tiny.gguf": RAW}, cut={"tiny.gguf": 1000})
    assert models("pull", "me/tiny").exit_code == 69
    hub.repos["me/tiny"].cut.clear()
    [partial] = (root / ".partial").iterdir()
    with partial.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert models("pull", "me/tiny").exit_code == 75
    assert models("pull", "me/tiny").exit_code == 0


# --- models list, and names as --model


@pytest.fixture
def filled(root: Path, tiny_gguf: Path) -> Path:
    """A folder with two GGUF models, one in parts, and what is no model."""
    (root / "me/tiny").mkdir(parents=True)
    (root / "me/tiny/tiny-F32.gguf").write_bytes(tiny_gguf.read_bytes())
    for part in (1, 2):
        (root / f"me/tiny/big-0000{part}-of-00002.gguf").write_bytes(tiny_gguf.read_bytes())
    (root / ".partial").mkdir()
    (root / ".partial/x.gguf").write_bytes(b"GGUF")
    (root / "me/tiny/README.md").touch()
    return root


def test_list(filled: Path, tiny_gguf: Path, models: Models) -> None:
    told = json.loads(models("list", "--json").stdout)
    size = tiny_gguf.stat().st_size
    assert (told["schema_version"], told["folder"]) == (1, str(filled))
    rows = [(model["name"], model["size_bytes"]) for model in told["models"]]
    assert rows == [("me/tiny/big-00001-of-00002.gguf", 2 * size), ("me/tiny/tiny-F32.gguf", size)]
    assert told["models"][1]["path"] == str(filled / "me/tiny/tiny-F32.gguf")


class TestResolve:
    def test_names(self, filled: Path) -> None:
        for name in ("me/tiny/tiny-F32.gguf", "tiny/tiny-F32.gguf", "tiny-F32.gguf", "tiny-F32"):
            assert resolve(name, filled) == str(filled / "me/tiny/tiny-F32.gguf")

    def test_order(self, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A whole name comes before a path, a path before the end of a name."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "tiny-F32.gguf").touch()
        assert resolve("tiny-F32.gguf", filled) == "tiny-F32.gguf"
        assert resolve("me/tiny/tiny-F32.gguf", filled) == str(filled / "me/tiny/tiny-F32.gguf")
        assert resolve(str(tmp_path / "tiny-F32.gguf"), filled) == str(tmp_path / "tiny-F32.gguf")

    def test_none_and_several(self, filled: Path, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match=rf"tried the 2 names in {filled} and the path /.*/nothing"
        ):
            resolve("nothing", filled)
        with pytest.raises(ConfigError, match="tried the 2 names"):
            resolve(str(tmp_path / "nothing"), filled)
        (filled / "you").mkdir()
        (filled / "you/tiny-F32.gguf").touch()
        with pytest.raises(
            ConfigError, match=r"2 models.*me/tiny/tiny-F32.gguf, you/tiny-F32.gguf"
        ):
            resolve("tiny-F32", filled)

    def test_a_home(self, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No shell expands ~ in a file of settings, in a variable or behind an equals sign."""
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "x.gguf").touch()
        assert resolve("~/x.gguf", filled) == str(tmp_path / "x.gguf")
        monkeypatch.setenv("SPECMESH_MODELS_DIR", "~/models")
        assert models_dir() == tmp_path / "models"
        with pytest.raises(ConfigError, match=f"{tmp_path}/none.gguf"):
            resolve("~/none.gguf", filled)

    @pytest.mark.parametrize(
        ("value", "comes"),
        [
            ("/nowhere/at/all/model.gguf", True),
            ("{folder}/empty/model.gguf", True),
            ("{folder}/dangling.gguf", True),
            ("{folder}/tiny-F33.gguf", False),
            ("tiny-F33.gguf", False),
        ],
    )
    def test_a_disk_that_may_come(self, filled: Path, tmp_path: Path, value: str, comes: bool):
        """A path may lie on a disk that is not mounted; a name beside models is wrong."""
        (tmp_path / "empty").mkdir()
        (tmp_path / "tiny-F32.gguf").touch()
        (tmp_path / "dangling.gguf").symlink_to("/nowhere/model.gguf")
        with pytest.raises(ConfigError) as raised:
            resolve(value.format(folder=tmp_path), filled)
        assert isinstance(raised.value, NotThereYet) is comes
        assert ("--wait" in str(raised.value)) is comes

    @pytest.mark.parametrize("root", ["nowhere", "empty"])
    def test_a_folder_of_models_that_may_come(
        self, tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
    ):
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(NotThereYet):
            resolve("big-model-Q8_0", tmp_path / root)

    @pytest.mark.parametrize("call", ["os.listdir", "Path.is_symlink"])
    def test_a_closed_folder_does_not_open(
        self, filled: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ):
        """As homes are to the machine's own services."""

        def refused(_: object) -> list[str]:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(f"specmesh.models.{call}", refused)
        with pytest.raises(ConfigError, match="homes are hidden") as raised:
            resolve("/home/ada/model.gguf", filled)
        assert not isinstance(raised.value, NotThereYet)
