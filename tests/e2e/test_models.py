"""The same promises on real models: tiny random ones nobody has seen, and the bundled pair; drafters on MLX, too. CPU
threads where both daemons compute on one machine; a target whose layers are on others, by llama.cpp's RPC."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from harness.ports import free_port
from meshes import running
from processes import Daemon, Json, Mesh, Running, body, command, complete, drafted, generate, until

from specmesh.host import physical_cores

pytestmark = pytest.mark.models

BUNDLED = Path(str(files("specmesh") / "models"))
PROMPTS = [
    "def fibonacci(n):\n    ",
    "class Stack:\n    def __init__(self",
    "import os\nimport sys\n\n\ndef main(",
]
N = 60
KERNELS = 5e-3
"""By how much logits of one row and of several may differ: other kernels, and half precision between layers."""

SMALL = ("--ctx", 256, "--max-sessions", 4)


TWINS = {"same weights", "mlx same weights"}


@pytest.fixture(
    scope="module",
    params=["same weights", "other weights", "bundled", "mlx same weights", "mlx bundled"],
)
def kind(request: pytest.FixtureRequest) -> str:
    """What the drafter's model is to the target, and its engine."""
    return str(request.param)


@pytest.fixture(scope="module")
def pair(
    kind: str, make_gguf: Callable[..., Path], request: pytest.FixtureRequest
) -> Iterator[dict[str, Daemon]]:
    engine = "mlx" if kind.startswith("mlx") else "llama"
    make_hf = request.getfixturevalue("make_hf") if engine == "mlx" else None
    target, draft = (
        BUNDLED / "target.gguf",
        BUNDLED / ("drafter-hf" if engine == "mlx" else "drafter.gguf"),
    )
    if kind == "other weights":
        target, draft = make_gguf("target", seed=1, layers=2), make_gguf("other", seed=2, layers=1)
    elif kind in TWINS:
        target = make_gguf("target", seed=1, layers=2)
        draft = (
            make_gguf("twin", seed=1, layers=2) if make_hf is None else make_hf("twin", gguf=target)
        )
    with running() as mesh:
        verifier = mesh.verifier(target, *SMALL, "--reproducible", engine="llama")
        yield {"verifier": verifier, "drafter": mesh.drafter(draft, *SMALL, engine=engine)}


@pytest.mark.fault("E7.84")
def test_greedy_is_the_target_alone(pair: dict[str, Daemon], kind: str):
    for prompt in PROMPTS:
        alone = complete(pair["verifier"], body(prompt, N, draft_n=0)).ids
        for daemon in pair.values():
            for draft_n in ("auto", 4):
                assert complete(daemon, body(prompt, N, draft_n=draft_n)).ids == alone
    if kind != "other weights":
        assert drafted(pair["verifier"], body(PROMPTS[-1], N, draft_n=4)).ids == alone


def test_a_twin_is_accepted_and_a_stranger_is_not(pair: dict[str, Daemon], kind: str):
    """A drafter with the target's weights is nearly always right; the bundled one mostly; random weights hardly."""
    reports = list[Any]()

    def drafts() -> int:
        reports.extend(
            complete(pair["verifier"], body(one, N, draft_n=4)).result["report"] for one in PROMPTS
        )
        return sum(report["drafted"] for report in reports)

    until(lambda: drafts() > N, "drafts are verified")  # a busy machine's drafter is late for most
    accepted = sum(report["accepted"] for report in reports)
    low, high = (0, 0.3) if kind == "other weights" else (0.9, 1) if kind in TWINS else (0.3, 1)
    assert low <= accepted / sum(report["drafted"] for report in reports) <= high


def logprobs(daemon: Daemon, prompt: str, draft_n: int) -> list[Any]:
    """Each token's, and those of the three likeliest in its place."""
    chunks = daemon.client.complete(body(prompt, N, draft_n=draft_n, logprobs=3))
    return [one for chunk in chunks for one in chunk["specmesh"].get("logprobs", [])]


def margin(one: Any) -> float:
    """By how much the likeliest is ahead."""
    first, second, _ = (top["logprob"] for top in one["top_logprobs"])
    return float(first - second)


@pytest.mark.parametrize("arch", ["mamba", "lfm2"])
@pytest.mark.fault("E7.79")
def test_recurrent_and_hybrid_targets(make_gguf: Callable[..., Path], mesh: Mesh, arch: str):
    """They speculate: ids are those without drafts up to a near tie, as their steps have no constant width."""
    target = make_gguf(f"target-{arch}", arch=arch, seed=1)
    verifier = mesh.verifier(target, *SMALL, engine="llama")
    mesh.drafter(target, *SMALL, engine="llama")
    alone = [logprobs(verifier, prompt, 0) for prompt in PROMPTS]
    drafted, accepted = [0], [0]

    def mostly() -> bool:
        for draft_n in ("auto", 4):
            for prompt, truth in zip(PROMPTS, alone, strict=True):
                stream = complete(verifier, body(prompt, N, draft_n=draft_n))
                apart = [
                    one for token, one in zip(stream.ids, truth, strict=True) if token != one["id"]
                ]
                assert not apart or margin(apart[0]) < 2 * KERNELS, "before the first near tie"
                drafted.append(stream.result["report"]["drafted"])
                accepted.append(sum(stream.accepted))
        return sum(drafted) > N

    until(mostly, "drafts are verified")
    assert sum(accepted) > 0.8 * sum(drafted)
    ready = verifier.events("ready")[0]
    assert ready["trimming"] == "restore"


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="Linux shows the threads of a process"
)
def test_no_worker_is_left_of_the_loading(mesh: Mesh):
    """A verifier with N threads has N - 1 workers: those of the thread that loaded the model would stay as long as it,
    and libgomp has all of them sleep at barriers where they are more than cores."""
    counts = list[int]()
    for threads in (1, 4):
        verifier = mesh.verifier("bundled", *SMALL, "--threads", threads, engine="llama")
        complete(verifier, body(PROMPTS[0], 10))
        counts.append(len(list(Path(f"/proc/{verifier.pid}/task").iterdir())))
        verifier.stop()
    assert counts[1] - counts[0] <= 3


@pytest.mark.parametrize("options", [(), ("--reproducible",)], ids=str)
def test_chats_that_take_turns(mesh: Mesh, options: tuple[str, ...]):
    """Each goes on from the prefix cache, at the drafter too, with the log-probabilities of a text computed anew: to
    the last bit with steps of a constant width, else up to a near tie."""
    verifier = mesh.verifier(
        "bundled", "--ctx", 1024, "--max-sessions", 8, *options, engine="llama"
    )
    drafter = mesh.drafter(BUNDLED / "drafter.gguf", *SMALL, engine="llama")

    def asked(prompt: str, draft_n: int, *, cached: bool) -> tuple[list[Any], int]:
        more = {"draft_n": draft_n, "logprobs": 3, "cache_prompt": cached}
        chunks = [chunk["specmesh"] for chunk in verifier.client.complete(body(prompt, N, **more))]
        return [one for chunk in chunks for one in chunk.get("logprobs", [])], chunks[-1]["report"][
            "cached_tokens"
        ]

    times = 15 if options else 5
    for draft_n, more in ((0, 0), (4, 0), (4, 2)):
        for prompt in (one * (times + more) for one in PROMPTS):
            (alone, nothing), (found, cached) = (
                asked(prompt, 0, cached=False),
                asked(prompt, draft_n, cached=True),
            )
            assert (cached > 0, nothing) == (draft_n > 0, 0)
            assert not options or found == alone
            assert not (options and more) or cached % 128 == 0
            for one, other in zip(found, alone, strict=True):
                if one["id"] != other["id"]:
                    assert margin(other) < 2 * KERNELS
                    break
                assert one["logprob"] == pytest.approx(other["logprob"], abs=KERNELS)
    assert drafter.stats()["offloaded_bytes"] > 0


@pytest.mark.parametrize("sessions", [1, 2, 3, 64])
def test_any_number_of_sessions(mesh: Mesh, sessions: int):
    """However many sessions a verifier is made for, one too, it starts and says the model's own text."""
    verifier = mesh.verifier("bundled", "--max-sessions", sessions, "--ctx", 256, engine="llama")
    assert complete(verifier, body(PROMPTS[0], 20)).finish == "length"


def test_auto_takes_mlx_for_a_directory(
    make_gguf: Callable[..., Path], make_hf: Callable[..., Path], mesh: Mesh
):
    """Without --engine a Hugging Face directory runs on MLX, and the log says which; a stop is clean."""
    target = make_gguf("unseen-mlx", seed=21)
    verifier = mesh.verifier(target, *SMALL, engine="llama")
    drafter = mesh.drafter(make_hf("unseen-mlx", gguf=target), *SMALL, engine="auto")
    (chosen,) = drafter.events("engine_chosen")
    assert chosen["engine"] == "mlx"
    drafted(
        verifier, body(PROMPTS[0], 200, draft_n=2)
    )  # a first step of MLX takes as long as many of the target
    assert drafter.stop() == 0


@pytest.mark.parametrize("model", ["no/such/folder", "nobody-here/no-such-model", ""])
def test_unusable_mlx_model(mesh: Mesh, model: str):
    """No directory and no model of the hub: exit 78, one line, no traceback."""
    pytest.importorskip("mlx_lm")
    done = mesh.cannot_start(
        "drafter", "--engine", "mlx", "--model", model, env={"HF_HUB_OFFLINE": "1"}
    )
    done.refused(78, model)


def started(mesh: Mesh, verifier: list[object], drafter: list[object]) -> tuple[Daemon, Daemon]:
    """The bundled pair with these options, and no others that say how many threads there are to be."""
    first = mesh.start("verifier", "--model", "bundled", "--bind", mesh.address, *verifier).ready()
    assert threads(first) == (verifier[-1] if verifier else physical_cores())
    second = mesh.start(
        "drafter", "--model", "bundled", "--connect", mesh.address, *drafter
    ).ready()
    return first, mesh.attached(second)


def threads(daemon: Daemon) -> int:
    model: Json = daemon.stats()["model"]
    kind, count, unit = str(model["backend"]).replace(",", "").split()
    assert (kind, unit) == ("CPU", "thread" if count == "1" else "threads")
    return int(count)


def test_default_threads_of_both_are_at_most_the_cores(mesh: Mesh):
    """A verifier takes all cores while nothing is drafted on its host; while it is, both together take no more."""
    verifier, drafter = started(mesh, [], [])
    assert generate(verifier, "def f(", "--max-tokens", 8, "--draft-n", 4).code == 0
    until(
        lambda: threads(verifier) + threads(drafter) <= max(physical_cores(), 2),
        "the cores are shared",
    )
    for daemon in (verifier, drafter):
        if threads(daemon) < physical_cores():
            assert [event["threads"] for event in daemon.events("cpu_threads")] == [threads(daemon)]
            assert "others of this host" in str(daemon.events("cpu_threads")[0]["why"])
        assert not daemon.events("more_threads_than_cores")
    assert generate(verifier, "def f(", "--max-tokens", 8, "--draft-n", 0).code == 0
    until(lambda: threads(verifier) == physical_cores(), "a text without drafts has all cores")
    assert generate(verifier, "def f(", "--max-tokens", 8, "--draft-n", 4).code == 0
    until(
        lambda: threads(verifier) + threads(drafter) <= max(physical_cores(), 2),
        "the cores are shared again",
    )
    drafter.stop()
    until(lambda: not verifier.stats()["peers"], "the drafter is gone")
    assert generate(verifier, "def f(", "--max-tokens", 8).code == 0
    until(lambda: threads(verifier) == physical_cores(), "it has all cores again")


def test_threads_that_were_asked_for_are_obeyed_with_a_warning(mesh: Mesh):
    """--threads holds, whoever else computes there; each says once that there are more of them than cores."""
    wanted = physical_cores() + 1
    verifier, drafter = started(mesh, ["--threads", wanted], ["--threads", wanted])
    assert generate(verifier, "def f(", "--max-tokens", 8).code == 0
    assert (threads(verifier), threads(drafter)) == (wanted, wanted)
    for daemon in (verifier, drafter):
        [warning] = until(lambda one=daemon: one.events("more_threads_than_cores"), "a warning")
        assert (warning["level"], warning["threads"], warning["others"]) == (
            "warning",
            wanted,
            wanted,
        )


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    running = [Running("rpc-server", "--bind", address, "--threads", 1) for address in addresses]
    try:
        for address, server in zip(addresses, running, strict=True):
            until(partial(_listens, address, server), f"{address} listens")
        yield addresses
    finally:
        for server in running:
            server.process.kill()
            server.end()


def _listens(address: str, server: Running) -> bool:
    assert server.process.poll() is None, server.end()
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 1.0):
        return True
    return False


def test_split_over_two_servers(shared: Mesh, servers: list[str]):
    """The text is that of one machine, with drafts too. The backend names the devices, in stats as in the log."""
    plain = shared.verifier("bundled", engine="llama", name="plain")
    expected = [complete(plain, body(prompt, 48)).ids for prompt in PROMPTS]
    plain.stop()
    split = shared.verifier("bundled", "--rpc", ",".join(servers), engine="llama", name="split")
    assert [complete(split, body(prompt, 48)).ids for prompt in PROMPTS] == expected
    backend = str(split.stats()["model"]["backend"])
    assert all(f"RPC{number}: {address}" in backend for number, address in enumerate(servers))
    assert backend.endswith("layers")
    assert split.events("ready")[0]["backend"] == backend
    shown = command("stats", "--socket", split.socket)
    assert servers[1] in shown.out
    shared.drafter("bundled", engine="llama")
    assert drafted(split, body(PROMPTS[0], 48, draft_n=4)).ids == expected[0]


def test_what_cannot_be(shared: Mesh):
    """A server that is not there, or beyond this machine: 78, one line, before the model is loaded."""
    for address, words in (("127.0.0.1:1", "rpc-server"), ("192.0.2.1:50052", "--insecure-rpc")):
        shared.cannot_start(
            "verifier", "--engine", "llama", "--model", "bundled", "--rpc", address
        ).refused(78, words)
    assert command("rpc-server", "--bind", "192.0.2.1:50052").code == 78
