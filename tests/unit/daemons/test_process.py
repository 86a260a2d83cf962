"""A daemon's process: what wakes its loop, and what ends it where it makes no progress; where its socket lives, what a
verifier says of its model file, what is logged, and metrics."""

import asyncio
import grp
import itertools
import json
import logging
import os
import pwd
import re
import select
import warnings
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from harness import PATIENCE, snapshots
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from specmesh import logs, paths
from specmesh.api.metrics import exposition
from specmesh.config import ModelSettings
from specmesh.core.retries import Retries
from specmesh.daemons import serve
from specmesh.daemons.runtime.loops import DaemonLoop, Mailbox
from specmesh.daemons.runtime.process import STUCK, Notifier, watchdog
from specmesh.daemons.serve import model_hash
from specmesh.errors import Busy, ConfigError
from specmesh.wire.messages import FinishReason


def woken(mailbox: Mailbox[str]) -> bool:
    return bool(select.select([mailbox], [], [], 0)[0])


def test_only_what_is_urgent_wakes_a_dozing_loop():
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("tokens", urgent=False)
    assert woken(mailbox)
    assert mailbox.take() == ["tokens"]
    mailbox.dozing = True
    mailbox.put("more", urgent=False)
    assert not woken(mailbox)
    mailbox.put("the end")
    assert woken(mailbox)
    assert mailbox.take() == ["more", "the end"]
    assert not woken(mailbox)
    mailbox.close()


def test_a_loop_dozes_while_items_come_fast():
    """It takes what wakes it no more soon all the same, and is woken again once nothing came for a doze."""
    taken: list[int] = []
    methods: dict[str, Any] = {name: lambda *_: None for name in DaemonLoop.__abstractmethods__}
    methods |= {"_take": lambda _, item, now: taken.append(item), "_drained": lambda *_: True}
    daemon = type("Daemon", (DaemonLoop,), methods)(0.0, Busy("it stops"))
    numbers = itertools.count()

    async def put_until(reached: Any, *, fast: bool = False) -> None:
        while not reached():
            if fast:
                daemon.mailbox.put(next(numbers), urgent=False)
            await asyncio.sleep(0)

    async def use() -> None:
        serving = asyncio.create_task(daemon.serve())
        for _ in range(2):
            await put_until(lambda: daemon.mailbox.dozing, fast=True)
            daemon.mailbox.put(last := next(numbers), urgent=False)
            await put_until(lambda: last in taken)
            await put_until(lambda: not daemon.mailbox.dozing)
        daemon.stop()
        await serving

    asyncio.run(asyncio.wait_for(use(), PATIENCE))
    assert taken == list(range(next(numbers)))
    daemon.mailbox.close()


@pytest.mark.fault("E6.63")
@pytest.mark.fault("E8.91")
def test_a_stuck_process_ends_itself():
    """Without a manager that watches: after so many checks in a row without progress, and not before."""
    ended: SimpleQueue[int] = SimpleQueue()
    told = iter([1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3])
    left = [0]

    def progress() -> int:
        left[0] += 1
        return next(told)

    with watchdog(progress, Notifier({}), interval=0.001, checks=3, end=ended.put):
        assert ended.get(timeout=PATIENCE) == STUCK
        assert left[0] == 8


def test_what_is_waited_for_is_noticed_once_a_minute():
    """And at once where it is another thing; it is looked for ever more seldom, but every few
    seconds."""
    retries, now, noticed = Retries(), 0.0, list[tuple[float, str]]()
    for what, until in (("a disk", 130.0), ("an address", 140.0), ("a disk", 150.0)):
        while now < until:
            if retries.missed(what, now):
                noticed.append((now, what))
            assert retries.pause <= 4.0
            now += retries.pause
    assert [what for _, what in noticed] == ["a disk"] * 3 + ["an address", "a disk"]
    assert [round(at / 60) for at, _ in noticed[:3]] == [0, 1, 2]


# --- sockets and model files


def test_candidates_user_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths.sys, "platform", "linux")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/5")
    own, system = Path("/run/user/5/specmesh"), paths.SYSTEM_DIR
    sockets = [
        folder / f"{role}.sock" for folder in (own, system) for role in ("verifier", "drafter")
    ]
    assert paths.candidate_sockets() == sockets
    assert paths.default_socket("drafter") == own / "drafter.sock"


def test_without_a_runtime_folder(monkeypatch: pytest.MonkeyPatch):
    """Without XDG_RUNTIME_DIR: pam_systemd's folder where it exists, else one in the home."""
    monkeypatch.setattr(paths.sys, "platform", "linux")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(paths.Path, "is_dir", lambda _: True)
    assert paths.user_runtime_dir() == Path(f"/run/user/{os.getuid()}/specmesh")
    monkeypatch.setattr(paths.Path, "is_dir", lambda _: False)
    assert paths.user_runtime_dir() == Path.home() / ".cache/specmesh/run"


def test_length_is_counted_in_bytes():
    """103 bytes are the most, and a letter may have several."""
    paths.check_socket_path(Path("/" + "x" * 102))
    for path in (Path("/" + "x" * 103), Path("/" + "ü" * 52)):
        with pytest.raises(ConfigError, match=f"{path} has 10[45] bytes, 103 at most"):
            paths.check_socket_path(path)


def test_folder_is_made_private(tmp_path: Path):
    """A missing folder is made for this user alone; an existing one is taken as it is; a file in the way is told."""
    path = tmp_path / "a" / "b" / "v.sock"
    paths.prepare_folder(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    paths.prepare_folder(path)
    path.touch()
    with pytest.raises(ConfigError, match="cannot make the folder"):
        paths.prepare_folder(path / "v.sock")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int):
    """By its name, with what to do, and as wrong settings; closed to others it is used."""
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match="others may write there") as refused:
        paths.prepare_folder(folder / "v.sock")
    assert f"chmod go-w {folder}" in str(refused.value)
    folder.chmod(mode & ~0o022)
    paths.prepare_folder(folder / "v.sock")


def test_a_folder_of_a_foreign_group_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A group of this user's own name has no others in it, unless it names them."""
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o770)
    user = pwd.getpwuid(os.geteuid()).pw_name
    for name, members, refused in ((user, [], False), (user, ["eve"], True), ("staff", [], True)):
        group = grp.struct_group((name, "x", 1, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        with pytest.raises(ConfigError) if refused else nullcontext():
            paths.prepare_folder(folder / "v.sock")


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path):
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(ConfigError, match=f"{tmp_path / 'link'} for the socket is not safe"):
        paths.prepare_folder(tmp_path / "link" / "v.sock")


def test_a_shared_sticky_folder_is_used(tmp_path: Path):
    """As /tmp is: nobody can remove or rename what is another's."""
    tmp_path.chmod(0o1777)
    paths.prepare_folder(tmp_path / "v.sock")


@pytest.mark.parametrize("size", [0, 1, 2**16 + 1, 12 * 2**20])
def test_the_hash_of_a_model_file(tmp_path: Path, size: int):
    """Copies have the same, files of another size or with another beginning or end have not."""
    contents = [
        bytes(size),
        bytes(size),
        bytes(size + 1),
        b"x" + bytes(size)[1:],
        bytes(size)[:-1] + b"x",
    ]
    hashes = []
    for number, content in enumerate(contents):
        (path := tmp_path / str(number)).write_bytes(content)
        hashes.append(model_hash(ModelSettings("llama", str(path))))
    assert hashes[0] == hashes[1]
    assert hashes[0] not in hashes[2:]
    assert model_hash(ModelSettings("llama", str(tmp_path))) == ""


@pytest.mark.parametrize("part", [1, 2, 3])
@pytest.mark.parametrize("at", [0, 2**20 - 1])
def test_the_hash_of_a_model_in_parts(tmp_path: Path, part: int, at: int):
    """It covers each part, beginning and end, and a part's length: the first may hold no weights
    at all."""
    hashes = set[str]()
    for folder, byte, more in (("a", b"\0", b""), ("b", b"x", b""), ("c", b"\0", b"\0")):
        (tmp_path / folder).mkdir()
        for number in (1, 2, 3):
            content = bytearray(2**20)
            if number == part:
                content[at : at + 1] = byte
                content += more
            (tmp_path / folder / f"m-0000{number}-of-00003.gguf").write_bytes(content)
        first = tmp_path / folder / "m-00001-of-00003.gguf"
        hashes.add(model_hash(ModelSettings("llama", str(first))))
    assert len(hashes) == 3


def test_the_hash_of_a_large_model_reads_little_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two parts of 20 GB, of which a file system keeps nothing: 64 blocks of each are read."""
    for number in (1, 2):
        with (tmp_path / f"m-0000{number}-of-00002.gguf").open("wb") as file:
            file.truncate(20 * 10**9)
    taken = list[int]()
    monkeypatch.setattr(serve, "hashlib", SimpleNamespace(sha256=lambda: Counted(taken)))
    model_hash(ModelSettings("llama", str(tmp_path / "m-00001-of-00002.gguf")))
    assert sum(taken) == 2 * (8 + 64 * 2**16)


class Counted:
    """A digest that counts what it is given."""

    def __init__(self, taken: list[int]) -> None:
        self._taken = taken

    def update(self, raw: bytes) -> None:
        self._taken.append(len(raw))

    def hexdigest(self) -> str:
        return ""


# --- what the daemons log, and what libraries do


def test_libraries_log_through_it(capfd: pytest.CaptureFixture[str]):
    logs.configure("info")
    library = logging.getLogger("some.library")
    library.warning("low on %s", "memory")
    library.info("not asked for")
    library.error("it failed", exc_info=ValueError("broken\nin two"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    logs.flush()
    told = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["event"] for line in told] == ["library"] * 3
    assert (told[0]["line"], told[0]["level"]) == ("low on memory", "warning")
    assert told[1]["error"] == "ValueError: broken\nin two"
    assert "DeprecationWarning: old" in str(told[2]["line"])


@pytest.mark.timeout(10)
def test_a_line_waits_for_room():
    """Whoever shares a pipe may have made it non-blocking: a line is never cut off, with the next right behind."""
    end, into = os.pipe()
    os.set_blocking(into, False)
    with os.fdopen(end) as reader:
        logs.LogWriter(into).write("long" * 100_000)
        assert reader.read(400_001) == "long" * 100_000 + "\n"
    os.close(into)


# --- metrics, with the reader that prometheus_client has itself

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def scraped(snapshot, reason=None):
    """{(sample, its labels): value} as both formats say it."""
    text, content_type = exposition(snapshot, "", healthy=reason is None)
    assert content_type.startswith("text/plain; version=0.0.4")
    open_text, content_type = exposition(snapshot, OPENMETRICS, healthy=reason is None)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert open_text.endswith(b"# EOF\n")
    values = _values(read_text(text.decode()))
    assert values == _values(read_openmetrics(open_text.decode()))
    return values


def _values(families):
    samples = [sample for family in families for sample in family.samples]
    values = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}
    assert len(values) == len(samples), "each series is there once"
    assert all(name.startswith("specmesh_") for name, *_ in values)
    return values


def test_operations_names_the_metrics():
    """The table of docs/operations.md has each metric, and none besides."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.partition("\n### Metrics\n")[2].partition("\n### ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    told = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    series = scraped(snapshots.verifier()) | scraped(snapshots.drafter())
    assert sorted(told) == sorted(
        {re.sub(r"^specmesh_|_(bucket|count|sum)$", "", name) for name, *_ in series}
    )


def test_no_label_names_a_peer_or_a_session():
    """Nothing that a peer says of itself, and no session, is in the metrics; its busy share is brought into range."""
    peer = snapshots.peer()
    for told, busy in ((1e9, 1.0), (-5.0, 0.0), (float("nan"), 0.0)):
        peer.link.note_busy(told)
        assert peer.link.busy == busy
    text = exposition(snapshots.verifier(), "", healthy=True)[0].decode()
    assert not any(word in text for word in ("mac:", "5088330", "big.gguf"))


def test_each_end_is_counted():
    """By its reason, but for a session that another drafter has now."""
    sessions = snapshots.verifier(ended=FinishReason).sessions
    assert asdict(sessions.ended) == {
        reason: 1 for reason in FinishReason if reason is not FinishReason.MOVED
    }


def test_what_is_not_there_is_left_out():
    """A daemon that loads its model has no more than that."""
    told = scraped(snapshots.LOADING, "loading")
    assert (told.pop(("specmesh_engine_healthy",)), told.pop(("specmesh_loading_ratio",))) == (
        0,
        0.43,
    )
    assert {name for name, *_ in told} == {"specmesh_build_info", "specmesh_uptime_seconds"}
