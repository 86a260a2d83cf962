"""The same promises on real models: tiny random ones and the bundled pair, drafters on MLX too.

CPU threads of daemons on one machine, and a target with layers on others by llama.cpp's RPC.
"""

from importlib.resources import files
from itertools import product
from operator import ge
from pathlib import Path

import numpy as np
import pytest
from harness.ports import free_port, is_open
from meshes import running
from processes import body, by_drafters, command, complete, drafted, generate, rpc_server, until

from specmesh import Client
from specmesh.errors import RequestError
from specmesh.host import physical_cores

pytestmark = pytest.mark.models

BUNDLED = Path(str(files("specmesh") / "models"))
PROMPTS = [
    "def fibonacci(n):\n    ",
    "class Stack:\n    def __init__(self",
    "import os\nimport sys\n\n\ndef main(",
]
N = 60
SHORT = 16  # tokens of a text whose prompt is what matters
KERNELS = 5e-3
"""By how much logits of one row and of several may differ.

Other kernels, and half precision between layers.
"""

SMALL = ("--ctx", 256, "--max-sessions", 4)
TWINS = {"same weights", "mlx same weights"}
KINDS = ["same weights", "other weights", "bundled", "mlx same weights", "mlx bundled"]
"""The drafter's model beside the target, and its engine."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return str(request.param)


@pytest.fixture(scope="module")
def pair(kind, make_gguf, request):
    if kind.startswith("mlx"):
        pytest.importorskip("mlx_lm")
    target = make_gguf("target", seed=1, layers=2)
    draft = target
    match kind:
        case "other weights":
            draft = make_gguf("other", seed=2, layers=1)
        case "mlx same weights":
            draft = request.getfixturevalue("make_hf")("twin", gguf=target)
        case "bundled":
            target, draft = BUNDLED / "target.gguf", BUNDLED / "drafter.gguf"
        case "mlx bundled":
            target, draft = BUNDLED / "target.gguf", BUNDLED / "drafter-hf"
    with running() as mesh:
        verifier = mesh.verifier(target, *SMALL, "--reproducible", engine="llama")
        drafter = mesh.drafter(draft, *SMALL, engine="auto")
        yield {"verifier": verifier, "drafter": drafter}
        assert drafter.stop() == 0


@pytest.mark.fault("E7.84")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_is_the_target_without_drafts(pair, kind, prompt):
    expected = complete(pair["verifier"], body(prompt, N, draft_n=0)).ids
    for daemon in pair.values():
        for draft_n in ("auto", 4):
            assert complete(daemon, body(prompt, N, draft_n=draft_n)).ids == expected
    if kind != "other weights":
        assert drafted(pair["verifier"], body(prompt, N, draft_n=4)).ids == expected


def test_a_twin_is_accepted_and_a_stranger_is_not(pair, kind):
    """A drafter with the target's weights is nearly always right, one with others hardly."""
    drafts, accepted = 0, 0

    def enough():
        nonlocal drafts, accepted
        for prompt in PROMPTS:
            report = complete(pair["verifier"], body(prompt, N, draft_n=4)).result["report"]
            tried, right = by_drafters(report)
            drafts += tried
            accepted += right
        return drafts > N

    until(enough, "drafts are verified")  # a busy machine's drafter is late for most
    rate = accepted / drafts
    if kind == "other weights":
        assert rate <= 0.3
    else:
        assert rate >= (0.9 if kind in TWINS else 0.3)
    drafter = pair["drafter"]
    assert drafter.verifier()["vocabulary"] == {"verdict": "same", "overlap": 1.0}
    assert not drafter.events("vocabulary_fetched")


def logprobs_of(daemon, prompt, count=N, **options):
    """Return each token's log-probability with the three likeliest, and the report."""
    found = []
    for chunk in daemon.client.complete(body(prompt, count, logprobs=3, **options)):
        found += chunk["specmesh"].get("logprobs", [])
    return found, chunk["specmesh"]["report"]


def agree(found, truth):
    """Check that log-probabilities are about the same, up to a near tie of two ids."""
    for place, other in zip(found, truth, strict=True):
        if place["id"] != other["id"]:
            first, second, _ = (top["logprob"] for top in other["top_logprobs"])
            assert first - second < 2 * KERNELS
            break
        assert place["logprob"] == pytest.approx(other["logprob"], abs=KERNELS)


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "qwen35", "gemma3"])
@pytest.mark.fault("E7.79")
def test_recurrent_and_hybrid_targets(make_gguf, mesh, arch):
    """They speculate; ids are the same up to a near tie, as steps have no constant width."""
    target = make_gguf(f"target-{arch}", arch=arch, seed=1)
    verifier = mesh.verifier(target, *SMALL, engine="llama")
    mesh.drafter(target, *SMALL, engine="llama")
    texts = {prompt: logprobs_of(verifier, prompt, draft_n=0)[0] for prompt in PROMPTS}
    drafts, accepted = 0, 0

    def mostly():
        nonlocal drafts, accepted
        for draft_n, prompt in product(("auto", 4), PROMPTS):
            found, report = logprobs_of(verifier, prompt, draft_n=draft_n)
            agree(found, texts[prompt])
            tried, right = by_drafters(report)
            drafts += tried
            accepted += right
        return drafts > N

    until(mostly, "drafts are verified")
    assert accepted > 0.8 * drafts
    trimming = "removal" if arch == "gemma3" else "restore"
    assert verifier.event("ready")["trimming"] == trimming


# --- what a next prompt reuses

LEAST_REUSED = {
    "lfm2": [696, 715, 184, 194, 194],
    "mamba": [696, 715, 184, 194, 194],
    "qwen35": [696, 715, 184, 194, 194],
    "gemma3": [699, 715, 650, 650, 690],
}
"""Tokens that llama-server takes from its cache, for the prompts of `next_prompts` in turn."""


def new_ids(count, seed):
    return np.random.default_rng(seed).integers(40, 120, count).tolist()


def next_prompts(prompt, answer):
    """Return the same prompt, a next turn, an edited message, another end, a turn cut short."""
    return [
        prompt,
        prompt + answer + new_ids(60, 1),
        prompt[:650] + new_ids(60, 2),
        prompt[:690] + new_ids(10, 3),
        prompt + answer[:-3],
    ]


def answered(daemon, prompt, count=16, **options):
    """Return the ids of a text after a prompt, and how many ids of that were in the cache."""
    stream = complete(daemon, body(prompt, count, ignore_eos=True, **options))
    return stream.ids, stream.result["report"]["cached_tokens"]


@pytest.fixture
def long_texts(make_gguf, mesh):
    def start(arch):
        path = make_gguf(f"long-{arch}", arch=arch, n_ctx=2048)
        return mesh.verifier(path, "--ctx", 1024, "--max-sessions", 4, engine="llama")

    return start


@pytest.mark.parametrize("arch", LEAST_REUSED)
def test_a_next_prompt_reuses_what_llama_server_does(long_texts, arch):
    verifier = long_texts(arch)
    prompt = new_ids(700, 0)
    answer, _ = answered(verifier, prompt, cache_prompt=True)
    reused = []
    for following in next_prompts(prompt, answer):
        reused.append(answered(verifier, following, cache_prompt=True)[1])
    assert all(map(ge, reused, LEAST_REUSED[arch])), reused


@pytest.mark.parametrize("arch", LEAST_REUSED)
def test_a_text_is_the_same_from_what_is_reused(long_texts, arch):
    verifier = long_texts(arch)
    prompt = new_ids(700, 0)
    answer, _ = answered(verifier, prompt, cache_prompt=True)
    for following in next_prompts(prompt, answer):
        anew, _ = logprobs_of(verifier, following, SHORT, draft_n=0)
        found, _ = logprobs_of(verifier, following, SHORT, draft_n=0, cache_prompt=True)
        agree(found, anew)


@pytest.mark.parametrize("arch", LEAST_REUSED)
def test_conversations_in_turn_keep_their_prefixes(long_texts, arch):
    verifier = long_texts(arch)
    texts = [new_ids(300, seed) for seed in (4, 5)]
    reused = []
    for _ in range(3):
        for number, text in enumerate(texts):
            answer, cached = answered(verifier, text, cache_prompt=True)
            reused.append(cached)
            texts[number] = text + answer
    assert reused == [0, 0, 315, 315, 331, 331]


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="Linux shows the threads of a process"
)
def test_no_worker_is_left_of_the_loading(mesh):
    """A verifier with N threads has N - 1 workers.

    Workers of the thread that loaded the model would live as long as it, and libgomp puts all of
    them to sleep at barriers if there are more than cores.
    """
    counts = []
    for count in (1, 4):
        verifier = mesh.verifier("bundled", *SMALL, "--threads", count, engine="llama")
        complete(verifier, body(PROMPTS[0], 10))
        counts.append(len(list(Path(f"/proc/{verifier.pid}/task").iterdir())))
        verifier.stop()
    assert counts[1] - counts[0] <= 3


def chat_turns(verifier, times):
    """Yield log-probabilities with and without the prefix cache, and the report of the former.

    Prompts are asked for without drafts, with them, and longer.
    """
    for draft_n, more in ((0, 0), (4, 0), (4, 2)):
        for prompt in PROMPTS:
            turn = prompt * (times + more)
            anew, nothing = logprobs_of(verifier, turn, SHORT, draft_n=0)
            cached = {"draft_n": draft_n, "cache_prompt": True}
            found, report = logprobs_of(verifier, turn, SHORT, **cached)
            assert nothing["cached_tokens"] == 0
            assert (report["cached_tokens"] > 0) == (draft_n > 0)
            yield found, anew, report


@pytest.fixture
def chatting(mesh):
    """Start the bundled pair with a prefix cache, which the drafter must have used at the end."""
    options = ("--ctx", 1024, "--max-sessions", 8)

    def start(*more):
        verifier = mesh.verifier("bundled", *options, *more, engine="llama")
        mesh.drafter(BUNDLED / "drafter.gguf", *SMALL, engine="llama")
        return verifier

    yield start
    assert mesh.daemons[-1].stats()["offloaded_bytes"] > 0


def test_reproducible_chats_are_the_same_from_the_cache(chatting):
    """Steps of a constant width give the same log-probabilities to the last bit."""
    lengths = []
    for found, anew, report in chat_turns(chatting("--reproducible"), 15):
        assert found == anew
        lengths.append(report["cached_tokens"])
    for length in lengths[-len(PROMPTS) :]:
        assert length % 128 == 0


def test_chats_from_the_cache_are_the_same_up_to_a_near_tie(chatting):
    for found, anew, _ in chat_turns(chatting(), 5):
        agree(found, anew)


@pytest.mark.parametrize("sessions", [1, 64])
def test_any_number_of_sessions(mesh, sessions):
    verifier = mesh.verifier("bundled", "--max-sessions", sessions, "--ctx", 256, engine="llama")
    assert complete(verifier, body(PROMPTS[0], 20)).finish == "length"


@pytest.mark.parametrize("model", ["no/such/folder", "nobody-here/no-such-model", ""])
def test_unusable_mlx_model(mesh, model):
    """No directory and no model of the hub: exit 78, one line, no traceback."""
    pytest.importorskip("mlx_lm")
    options = ("--engine", "mlx", "--model", model)
    mesh.cannot_start("drafter", *options, env={"HF_HUB_OFFLINE": "1"}).refused(78, model)


def bundled_pair(mesh, *options):
    """Start the bundled pair with these options and the default number of threads."""
    bundled = ("--model", "bundled", *options)
    first = mesh.start("verifier", "--bind", mesh.address, *bundled).ready()
    assert threads(first) == (options[-1] if options else physical_cores())
    second = mesh.start("drafter", "--connect", mesh.address, *bundled)
    return first, mesh.attached(second.ready())


def threads(daemon):
    model = daemon.stats()["model"]
    kind, count, unit = str(model["backend"]).replace(",", "").split()
    assert (kind, unit) == ("CPU", "thread" if count == "1" else "threads")
    return int(count)


def generated(daemon, *options):
    assert generate(daemon, "def f(", *options, max_tokens=8).code == 0


def test_default_threads_of_both_are_at_most_the_cores(mesh):
    """A verifier takes all cores while nothing is drafted on its host."""
    verifier, drafter = bundled_pair(mesh)
    cores = physical_cores()

    def shared():
        """Drafts that come late show nothing: then another text is asked for."""
        generated(verifier, "--draft-n", 4)
        return threads(verifier) + threads(drafter) <= max(cores, 2)

    until(shared, "the cores are shared")
    for daemon in (verifier, drafter):
        if threads(daemon) < cores:
            event = daemon.event("cpu_threads")
            assert event["threads"] == threads(daemon)
            assert "others of this host" in str(event["why"])
        assert not daemon.events("more_threads_than_cores")
    generated(verifier, "--draft-n", 0)
    until(lambda: threads(verifier) == cores, "a text without drafts has all cores")
    until(shared, "the cores are shared again")
    drafter.stop()
    verifier.alone()
    generated(verifier)
    until(lambda: threads(verifier) == cores, "it has all cores again")


def test_threads_that_were_asked_for_are_obeyed_with_a_warning(mesh):
    """Each daemon warns once that there are more of them than cores."""
    wanted = physical_cores() + 1
    daemons = bundled_pair(mesh, "--threads", wanted)
    generated(daemons[0])
    for daemon in daemons:
        assert threads(daemon) == wanted
        warning = daemon.event("more_threads_than_cores")
        assert warning["level"] == "warning"
        assert (warning["threads"], warning["others"]) == (wanted, wanted)


@pytest.fixture(scope="module")
def servers():
    ports = [free_port(), free_port()]
    first, second = (f"127.0.0.1:{port}" for port in ports)
    with rpc_server(first) as one, rpc_server(second) as other:
        until(lambda: all(map(is_open, ports)), "they listen")
        yield {first: one.process.pid, second: other.process.pid}


def computed(pid):
    """Return the nanoseconds for which the threads of a process have computed."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def test_split_over_two_servers(shared, servers):
    """The text is that of one machine, with drafts too; stats and log name the devices."""
    plain = shared.verifier("bundled", engine="llama", name="plain")
    texts = {prompt: complete(plain, body(prompt, 48)).ids for prompt in PROMPTS}
    plain.stop()
    split = shared.verifier("bundled", "--rpc", ",".join(servers), engine="llama", name="split")
    shared.drafter("bundled", engine="llama")
    before = {address: computed(pid) for address, pid in servers.items()}
    for prompt, ids in texts.items():
        assert drafted(split, body(prompt, 48, draft_n=4)).ids == ids
    for address, pid in servers.items():
        assert computed(pid) > before[address], f"{address} computes nothing"
    backend = str(split.stats()["model"]["backend"])
    for number, address in enumerate(servers):
        assert f"RPC{number}: {address}" in backend
    assert backend.endswith("layers")
    assert split.event("ready")["backend"] == backend
    assert list(servers)[1] in command("stats", socket=split.socket).out
    split.stop()  # a server serves one verifier at a time


def backend_of(mesh, servers, *options, name):
    """Return the text and the backend of a verifier on these servers."""
    addresses = ",".join(servers)
    verifier = mesh.verifier("bundled", "--rpc", addresses, *options, engine="llama", name=name)
    ids = complete(verifier, body(PROMPTS[0], 24)).ids
    backend = str(verifier.stats()["model"]["backend"])
    verifier.stop()
    return ids, backend


def test_servers_are_devices(mesh, servers):
    """They can be chosen by name, one alone, and their shares; the text is the same."""
    expected, both = backend_of(mesh, servers, name="both")
    assert ("RPC0: " in both, "RPC1: " in both) == (True, True)
    second = ("--device", "RPC1")
    alone = ("--split-mode", "none", "--main-gpu", "1")
    for number, options in enumerate((second, alone)):
        ids, backend = backend_of(mesh, servers, *options, name=f"one-{number}")
        assert (ids, "RPC0: " in backend, "RPC1: " in backend) == (expected, False, True)
    before = {address: computed(pid) for address, pid in servers.items()}
    shares = ("--tensor-split", "0,1", "--override-tensor", "token_embd=CPU")
    assert backend_of(mesh, servers, *shares, name="shares")[0] == expected
    spent = [computed(pid) - before[address] for address, pid in servers.items()]
    assert spent[0] < spent[1]


@pytest.mark.fault("E7.81")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--tensor-split", "1,1,1"), "shares for 3 devices, and there are 2"),
        (("--split-mode", "none", "--main-gpu", "2"), "--main-gpu 2 is not among the devices"),
        (("--device", "RPC2"), "llama.cpp has no RPC2: it has RPC0, RPC1"),
        (("--split-mode", "row"), "does not support split buffers"),
        (("--override-tensor", "ffn=RPC7"), "no buffer RPC7"),
    ],
)
def test_devices_that_are_not_there(mesh, servers, options, named):
    rpc = ("--engine", "llama", "--rpc", ",".join(servers))
    mesh.cannot_start("verifier", "--model", "bundled", *rpc, *options).refused(78, named)


def test_an_adapter_is_part_of_the_model(mesh, make_gguf, make_adapter):
    """A text goes on at a verifier with the same adapter, and at no other of the same name."""
    path = make_gguf("adapted")
    slow = ("--stretch", "h100-70b", "--lora")
    adapters = [f"{make_adapter(f'adapter-{seed}', seed=seed)}:0.5" for seed in (1, 2)]
    first = mesh.verifier(path, *slow, adapters[0], engine="llama")
    client = Client(first.socket)
    asked = {"max_tokens": 100, "temperature": 0}
    whole = client.generate("the hell", **asked).text
    with client.stream("the hell", **asked) as stream:
        next(stream)
        first.kill()
        second = mesh.verifier(path, *slow, adapters[1], engine="llama")
        with pytest.raises(RequestError, match=r"another adapted.* began this text"):
            stream.result()
    second.stop()
    third = mesh.verifier(path, *slow, adapters[0], engine="llama")
    with client.stream("the hell", **asked) as stream:
        next(stream)
        third.kill()
        mesh.verifier(path, *slow, adapters[0], engine="llama", ready=False)
        assert stream.result().text == whole


def test_options_at_both_daemons(mesh):
    """Drafts are accepted and change no text; the log names the options."""
    types = ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    options = (*types, "--ubatch-size", 64, "--no-mmap", "--rope-scale", 1.5)
    verifier = mesh.verifier("bundled", *options, engine="llama")
    drafter = mesh.drafter("bundled", *options, engine="llama")
    for prompt in PROMPTS:
        alone = complete(verifier, body(prompt, N)).ids
        assert drafted(verifier, body(prompt, N, draft_n=4)).ids == alone
    for daemon in (verifier, drafter):
        assert "--rope-scale" in daemon.event("ready")["options"]
