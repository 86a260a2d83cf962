"""A daemon's mailbox, watchdog, retries, socket, model hash, log and metrics."""

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
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from harness import PATIENCE, snapshots
from harness.tables import cases
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from specmesh import logs, paths
from specmesh.api.metrics import exposition
from specmesh.config import ModelSettings
from specmesh.core.retries import Retries
from specmesh.daemons import serve
from specmesh.daemons.runtime.loops import DaemonLoop, Mailbox
from specmesh.daemons.runtime.process import STUCK, Notifier, watchdog
from specmesh.errors import Busy, ConfigError
from specmesh.llama_options import Adapter, LlamaOptions, Override
from specmesh.wire.messages import FinishReason


@pytest.fixture
def mailbox():
    opened = Mailbox()
    yield opened
    opened.close()


def is_readable(mailbox):
    return bool(select.select([mailbox], [], [], 0)[0])


def test_only_urgent_items_wake_a_dozing_loop(mailbox):
    """It takes all of them in order."""
    mailbox.dozing = True
    mailbox.put("more", urgent=False)
    assert not is_readable(mailbox)
    mailbox.put("the end")
    assert is_readable(mailbox)
    assert mailbox.take() == ["more", "the end"]
    assert not is_readable(mailbox)


def test_a_loop_dozes_while_items_come_fast():
    """A dozing loop takes items that do not wake it, and wakes after a doze without any."""
    taken = []

    class Daemon(DaemonLoop):
        def _take(self, item, now):
            taken.append(item)

        def _drained(self, *_):
            return True

    others = dict.fromkeys(Daemon.__abstractmethods__, lambda *_: None)
    daemon = type("Idle", (Daemon,), others)(0.0, Busy("it stops"))
    numbers = itertools.count()

    def put():
        number = next(numbers)
        daemon.mailbox.put(number, urgent=False)
        return number

    async def reached(condition):
        while not condition():
            await asyncio.sleep(0)

    def dozes_after_an_item():
        put()
        return daemon.mailbox.dozing

    async def use():
        serving = asyncio.create_task(daemon.serve())
        for _ in range(2):
            await reached(dozes_after_an_item)
            last = put()
            await reached(lambda last=last: last in taken)
            await reached(lambda: not daemon.mailbox.dozing)
        daemon.stop()
        await serving

    asyncio.run(asyncio.wait_for(use(), PATIENCE))
    assert taken == list(range(next(numbers)))
    daemon.mailbox.close()


@pytest.mark.fault("E6.63")
@pytest.mark.fault("E8.91")
def test_a_stuck_process_ends_itself():
    """It ends after so many checks in a row without progress, not before."""
    ended = SimpleQueue()
    progress = iter([1, 2, 2, 2, *itertools.repeat(3, 100)])
    with watchdog(progress.__next__, Notifier({}), interval=0.001, checks=3, end=ended.put):
        assert ended.get(timeout=PATIENCE) == STUCK
    assert len(list(progress)) == 100 - 4


def missed(retries, reason, begin, end):
    """Return the times at which another line is due, while a thing is missed."""
    noticed = []
    now = begin
    while now < end:
        if retries.missed(reason, now):
            noticed.append(now)
        now += retries.pause
    return noticed


def test_a_missing_thing_is_noticed_once_a_minute():
    """It is looked for every few seconds."""
    retries = Retries()
    noticed = missed(retries, "a disk", 0.0, 130.0)
    assert noticed == pytest.approx([0.0, 60.0, 120.0], abs=5.0)
    assert retries.pause == 4.0


def test_another_missing_thing_is_noticed_at_once():
    retries = Retries()
    missed(retries, "a disk", 0.0, 10.0)
    assert missed(retries, "an address", 10.0, 20.0) == [10.0]
    assert missed(retries, "a disk", 20.0, 30.0) == [20.0]


# --- sockets


@pytest.fixture
def linux(monkeypatch):
    monkeypatch.setattr(paths.sys, "platform", "linux")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


@pytest.mark.usefixtures("linux")
def test_candidates_user_first(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/5")
    own = Path("/run/user/5/specmesh")
    found = paths.candidate_sockets()
    assert found[:2] == [own / "verifier.sock", own / "drafter.sock"]
    assert {path.parent for path in found[2:]} == {paths.SYSTEM_DIR}
    assert paths.default_socket("drafter") == own / "drafter.sock"


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize(
    ("exists", "folder"),
    [
        (True, Path(f"/run/user/{os.getuid()}/specmesh")),
        (False, Path.home() / ".cache/specmesh/run"),
    ],
)
def test_without_a_runtime_folder(monkeypatch, exists, folder):
    """pam_systemd's folder is used if it exists; without it, one in the home."""
    monkeypatch.setattr(paths.Path, "is_dir", lambda _: exists)
    assert paths.user_runtime_dir() == folder


@pytest.mark.parametrize("name", ["x" * 103, "ü" * 52])
def test_length_is_counted_in_bytes(name):
    """103 bytes are the most, and a letter may have several."""
    paths.check_socket_path(Path("/" + "x" * 102))
    path = Path("/" + name)
    with pytest.raises(ConfigError, match=f"{path} has 10[45] bytes, 103 at most"):
        paths.check_socket_path(path)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


def prepare(folder):
    paths.prepare_folder(folder / "v.sock")


def refused(folder, why):
    with pytest.raises(ConfigError, match=why):
        prepare(folder)


def test_a_folder_is_made_private(tmp_path):
    made = tmp_path / "a" / "b"
    for _ in range(2):
        prepare(made)
    assert made.stat().st_mode & 0o777 == 0o700


def test_a_file_in_the_place_of_a_folder_is_refused(folder):
    (folder / "file").touch()
    refused(folder / "file", "cannot make the folder")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_a_folder_that_others_may_write_is_refused(folder, mode):
    folder.chmod(mode)
    refused(folder, f"others may write there.*chmod go-w {folder}")
    folder.chmod(mode & ~0o022)
    prepare(folder)


USER = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def group(folder, monkeypatch):
    """Give the folder to a group, and let that write there."""

    def give(name, members):
        folder.chmod(0o770)
        found = grp.struct_group((name, "x", 1, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _: found)

    return give


@pytest.mark.parametrize(("name", "members"), [(USER, ["eve"]), ("staff", [])])
def test_a_folder_of_a_foreign_group_is_refused(folder, group, name, members):
    group(name, members)
    refused(folder, "others may write there")


def test_a_folder_of_the_users_own_group_is_used(folder, group):
    group(USER, [])
    prepare(folder)


def test_a_folder_that_is_a_link_is_refused(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    refused(link, r"is not safe \(it is a link\): choose another --socket")


def test_a_shared_sticky_folder_is_used(folder):
    """Nobody can remove or rename the files of others in a folder like /tmp."""
    folder.chmod(0o1777)
    prepare(folder)


# --- the hash of a model


def model_hash(path):
    return serve.model_hash(ModelSettings(engine="llama", model=str(path)))


def hash_of(folder, *contents):
    """Return the hash of a model whose parts have these contents."""
    folder.mkdir()
    for number, content in enumerate(contents, 1):
        (folder / f"m-{number:05}-of-{len(contents):05}.gguf").write_bytes(content)
    return model_hash(folder / f"m-00001-of-{len(contents):05}.gguf")


@pytest.mark.parametrize("size", [0, 1, 2**16 + 1, 12 * 2**20])
@pytest.mark.parametrize("part", range(3))
def test_the_hash_of_a_model(tmp_path, size, part):
    """Copies have the same; another size, beginning or end of a part gives another one."""
    parts = [bytes(size)] * 3
    hashes = {hash_of(tmp_path / "first", *parts), hash_of(tmp_path / "copy", *parts)}
    others = {bytes(size + 1), b"x" + bytes(size)[1:], bytes(size)[:-1] + b"x"}
    for number, other in enumerate(others):
        parts[part] = other
        hashes.add(hash_of(tmp_path / str(number), *parts))
    assert len(hashes) == 1 + len(others)


def test_the_hash_of_a_model_of_one_part(tmp_path):
    assert hash_of(tmp_path / "first", b"x") != hash_of(tmp_path / "other", b"y")


def folder_hash(folder):
    return serve.model_hash(ModelSettings(engine="mlx", model=str(folder)))


@pytest.mark.parametrize("changed", ["config.json", "tokenizer.json", "model-2.safetensors"])
def test_the_hash_of_a_folder(tmp_path, changed):
    """Another file beside the model changes nothing."""
    for name in ("config.json", "tokenizer.json", "model-1.safetensors", "model-2.safetensors"):
        (tmp_path / name).write_bytes(name.encode())
    before = folder_hash(tmp_path)
    (tmp_path / "README.md").write_bytes(b"new")
    assert folder_hash(tmp_path) == before
    (tmp_path / changed).write_bytes(b"other")
    assert folder_hash(tmp_path) not in ("", before)


def test_a_folder_that_is_not_here_has_no_hash(tmp_path):
    assert folder_hash(tmp_path / "none") == folder_hash("nobody-here/none") == ""


def varied(path, **options):
    llama = LlamaOptions(**options)
    settings = ModelSettings(engine="llama", model=str(path), gpu_layers=None, llama=llama)
    return serve.model_hash(settings)


@pytest.fixture
def weights(tmp_path):
    """The files of a model and of two adapters."""
    for name in ("model", "one", "two"):
        (tmp_path / f"{name}.gguf").write_bytes(name.encode())
    return tmp_path


def test_the_hash_covers_what_changes_the_output(weights):
    """Each option that changes logits by more than rounding, and each adapter with its scale."""
    model, one, two = (weights / f"{name}.gguf" for name in ("model", "one", "two"))
    variations = [
        {},
        {"cache_type_k": "q8_0"},
        {"cache_type_v": "q8_0"},
        {"cache_type_k": "q4_0"},
        {"rope_scaling": "none"},
        {"rope_scale": 2.0},
        {"rope_scale": 4.0},
        {"rope_scaling": "yarn", "rope_scale": 4.0},
        {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 32},
        {"lora": (Adapter(one),)},
        {"lora": (Adapter(two),)},
        {"lora": (Adapter(one, 0.5),)},
        {"lora": (Adapter(one), Adapter(two))},
        {"lora": (Adapter(one, 0.5), Adapter(two))},
    ]
    hashes = {varied(model, **options) for options in variations}
    assert len(hashes) == len(variations)


@pytest.mark.parametrize(
    "options",
    [
        {"flash_attn": "off"},
        {"cache_type_k": "f16", "cache_type_v": "f16"},
        {"cpu_moe": True},
        {"n_cpu_moe": 3},
        {"override_tensor": (Override("ffn", "CPU"),)},
        {"device": ("CUDA0",), "split_mode": "row", "tensor_split": (1.0,), "main_gpu": 0},
        {"no_mmap": True, "mlock": True, "ubatch_size": 8},
    ],
)
def test_the_hash_does_not_cover_what_only_rounds_differently(weights, options):
    """Another machine may have other devices, and runs the same model."""
    model = weights / "model.gguf"
    assert varied(model, **options) == model_hash(model)


def test_the_hash_of_adapters_is_that_of_their_sum(weights):
    """Neither their order counts, nor their names, nor one that has no effect."""
    model, one, two = (weights / f"{name}.gguf" for name in ("model", "one", "two"))
    copy = weights / "copy.gguf"
    copy.write_bytes(one.read_bytes())
    expected = varied(model, lora=(Adapter(one), Adapter(two)))
    for adapters in ((two, one), (copy, two)):
        assert varied(model, lora=tuple(map(Adapter, adapters))) == expected
    assert varied(model, lora=(Adapter(one, 0.0),)) == model_hash(model)


def test_a_folder_has_no_hash(tmp_path):
    assert model_hash(tmp_path) == ""


def test_the_hash_of_a_large_model_reads_little_of_it(tmp_path, monkeypatch):
    """64 blocks are read of each of two sparse parts of 20 GB."""
    for number in (1, 2):
        with (tmp_path / f"m-0000{number}-of-00002.gguf").open("wb") as file:
            file.truncate(20 * 10**9)
    lengths = []
    digest = SimpleNamespace(
        update=lambda data: lengths.append(len(data)), hexdigest=lambda: "digest"
    )
    monkeypatch.setattr(serve, "hashlib", SimpleNamespace(sha256=lambda: digest))
    model_hash(tmp_path / "m-00001-of-00002.gguf")
    assert sum(lengths) == 2 * (8 + 64 * 2**16)


# --- the log


@pytest.fixture
def logged(capfd):
    """Return the lines that were logged."""
    logs.configure("info")

    def lines():
        logs.flush()
        return [json.loads(line) for line in capfd.readouterr().err.splitlines()]

    return lines


def test_libraries_log_through_it(logged):
    """Their warnings and errors are logged, their other lines are not."""
    library = logging.getLogger("some.library")
    library.warning("low on %s", "memory")
    library.info("not asked for")
    [line] = logged()
    assert (line["event"], line["line"], line["level"]) == ("library", "low on memory", "warning")


def test_exceptions_of_libraries_are_logged(logged):
    logging.getLogger("some.library").error("it failed", exc_info=ValueError("broken\nin two"))
    [line] = logged()
    assert line["error"] == "ValueError: broken\nin two"


@pytest.mark.filterwarnings("always")
def test_warnings_are_logged(logged):
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    [line] = logged()
    assert "DeprecationWarning: old" in line["line"]


@pytest.mark.timeout(10)
def test_a_line_waits_for_room():
    """A line is never cut off in a pipe that another process has made non-blocking."""
    end, into = os.pipe()
    os.set_blocking(into, False)
    with os.fdopen(end) as reader:
        logs.LogWriter(into).write("long" * 100_000)
        assert reader.read(400_001) == "long" * 100_000 + "\n"
    os.close(into)


# --- metrics, with the reader of prometheus_client

PLAIN = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def scraped(snapshot, accept=OPENMETRICS, healthy=True):
    """Return the value of each series, by its name and labels."""
    content, content_type = exposition(snapshot, accept, healthy=healthy)
    assert content_type.startswith(accept)
    read = read_openmetrics if accept == OPENMETRICS else read_text
    values = {}
    for family in read(content.decode()):
        for sample in family.samples:
            series = (sample.name, *sorted(sample.labels.items()))
            assert series not in values
            values[series] = sample.value
    return values


@pytest.mark.parametrize("snapshot", [snapshots.verifier(), snapshots.drafter(), snapshots.LOADING])
def test_both_formats_have_the_same_values(snapshot):
    values = scraped(snapshot)
    assert values == scraped(snapshot, PLAIN)
    assert all(name.startswith("specmesh_") for name, *_ in values)


def test_operations_names_the_metrics():
    """The table of docs/operations.md has each metric, and no other."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.partition("\n### Metrics\n")[2].partition("\n### ")[0]
    documented = []
    for cell in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE):
        documented += re.findall(r"`(\w+)`", cell)
    names = set()
    for name, *_ in scraped(snapshots.verifier()) | scraped(snapshots.drafter()):
        names.add(re.sub(r"^specmesh_|_(bucket|count|sum)$", "", name))
    assert sorted(documented) == sorted(names)


@cases("reported, busy", "[1e9, 1.0] [-5.0, 0.0] [NaN, 0.0] [0.5, 0.5]")
def test_a_peers_busy_share_is_brought_into_range(reported, busy):
    link = snapshots.peer().link
    link.note_busy(reported)
    assert link.busy == busy


def test_no_label_names_a_peer_or_a_session():
    content, _ = exposition(snapshots.verifier(), "", healthy=True)
    assert not re.search(b"mac:|5088330|big.gguf", content)


def test_each_end_is_counted():
    """An end is counted by its reason, except for a session that another drafter has now."""
    sessions = snapshots.verifier(ended=FinishReason).sessions
    assert asdict(sessions.ended) == dict.fromkeys(set(FinishReason) - {FinishReason.MOVED}, 1)


def test_a_daemon_that_loads_has_few_metrics():
    values = scraped(snapshots.LOADING, healthy=False)
    assert values["specmesh_engine_healthy",] == 0
    assert values["specmesh_loading_ratio",] == 0.43
    names = {name.removeprefix("specmesh_") for name, *_ in values}
    assert names == {"build_info", "uptime_seconds", "engine_healthy", "loading_ratio"}
