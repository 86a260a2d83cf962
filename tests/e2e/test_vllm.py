"""A fake vLLM with the real proposer, its real port, and real drafter daemons."""

import random

import numpy as np
import pytest
from harness.fake_vllm import FakeVllm, config_of
from harness.tables import cases
from harness.truth import row_after
from peer import Peer
from processes import generate, until

from specmesh.client import Client
from specmesh.config import ModelSettings
from specmesh.core.prefix import Prefix, common_length
from specmesh.engines.load import load_verifier
from specmesh.engines.sim import END_ID, SimSettings, SimVerifier
from specmesh.paths import bundled
from specmesh.security.keys import KeyFolder, Listing
from specmesh.vllm import Proposer
from specmesh.vllm.settings import ProposerSettings
from specmesh.wire import messages as m

HTTP = "http://192.0.2.1:8000/v1"
STEP_S = 0.02
TOKENS = 60
ENOUGH = 20
LINES = b"def one(x):\n    return x + 1\n\ndef two(x):\n    return x + 2\n\n"
"""The text of a target that repeats itself."""


class SimTarget:
    """The simulated target's choice after any ids."""

    def __init__(self):
        self._engine = SimVerifier(SimSettings())
        self.vocabulary = self._engine.vocabulary

    def __call__(self, ids):
        return int(row_after(self._engine, ids).argmax())


def repeating(ids):
    """Return the next letter of LINES, again and again."""
    return LINES[len(ids) % len(LINES)]


class VllmPair:
    """A proposer at the mesh's address, and a fake server that asks it."""

    def __init__(self, mesh, choose=None, *, keys=None, rows=16, vocabulary=None, **options):
        self.mesh = mesh
        target = SimTarget()
        self.choose = choose or target
        self.socket = mesh.folder / "vllm.sock"
        vocabulary = vocabulary or target.vocabulary
        self.config = config_of(n_vocab=len(vocabulary))
        settings = ProposerSettings(
            bind=mesh.address,
            keys=keys,
            insecure=keys is None,
            http=HTTP,
            socket=self.socket,
            rows=rows,
        )
        self.proposer = Proposer(self.config, settings=settings, vocabulary=vocabulary)
        self.proposer.load_model()
        self.server = FakeVllm(
            self.proposer, self.choose, self.config, end_ids=[END_ID], step_s=STEP_S, **options
        )

    def stats(self):
        return Client(self.socket).get("/stats")

    def attached(self, count=1):
        """Wait until so many drafters are attached, and know the vocabulary."""

        def drafting():
            peers = self.stats()["peers"]
            return len(peers) == count and not any(peer["no_drafts"] for peer in peers)

        until(drafting, f"{count} drafters are attached")

    def drafter(self, *args, **how):
        drafter = self.mesh.drafter(*args, ready=False, **how)
        drafter.ready()
        self.attached()
        return drafter

    def accepted(self, source="remote"):
        return self.stats()["totals"]["accepted_by_source"].get(source, 0)

    def serves(self, *prompts, tokens=TOKENS, **options):
        """Answer these prompts at once, and check that each text is the target's own."""
        served = [self.server.ask(prompt, tokens, **options) for prompt in prompts]
        self.server.run()
        for request in served:
            ids = request.ids[: request.n_prompt]
            while len(ids) < len(request.ids):
                ids.append(self.choose(ids))
            assert request.ids == ids

    def serves_until(self, condition, what):
        """Answer a prompt again and again."""

        def holds():
            self.serves(list(b"def f(x):"))
            return condition()

        until(holds, what)


@pytest.fixture
def vllm(mesh):
    """Makes a pair of proposer and fake server: vllm(choose, **options)."""
    made = []

    def make(*args, **options):
        made.append(VllmPair(mesh, *args, **options))
        return made[-1]

    yield make
    for pair in made:
        pair.proposer.close()


def test_a_drafter_with_a_model_drafts(vllm):
    pair = vllm()
    pair.drafter()
    pair.serves_until(lambda: pair.accepted() > ENOUGH, "its drafts are accepted")


def test_a_drafter_without_a_model_drafts(vllm):
    """It is asked only as far as the text's own repeats, which draft too, do no better."""
    pair = vllm(repeating)
    drafter = pair.drafter(engine="ngram")

    def both_draft():
        drafted = drafter.stats()["totals"]["draft_tokens"]
        return drafted and pair.accepted() + pair.accepted("suffix") > ENOUGH

    pair.serves_until(both_draft, "it drafts, and drafts are accepted")


def test_repeated_text_needs_no_drafter(vllm):
    pair = vllm(repeating)
    pair.serves_until(lambda: pair.accepted("suffix") > ENOUGH, "repeated text is drafted")


def test_several_rows_and_twins(vllm):
    pair = vllm()
    pair.drafter()
    prompts = [list(f"text {number % 4}".encode()) for number in range(6)]
    pair.serves(*prompts)
    pair.serves_until(lambda: pair.accepted() > ENOUGH, "drafts of several rows are accepted")


def test_more_rows_than_are_drafted_for(vllm):
    pair = vllm(rows=2)
    pair.drafter()
    pair.serves(*[[number, 5] for number in range(1, 5)], tokens=20)
    pair.serves_until(lambda: pair.accepted() > ENOUGH, "few rows are drafted for again")


def test_a_server_short_of_everything(vllm):
    """Prompts are read in parts, rows move and are preempted, clients leave, drafts are cut."""
    pair = vllm(budget=48, cells=350, max_rows=4)
    pair.drafter()
    dice = random.Random(7)
    served = []
    while pair.server.preempted < 20 or len(served) < 40:
        if len([one for one in served if not one.over]) < 6:
            prompt = [dice.randrange(32, 127) for _ in range(dice.randrange(1, 150))]
            cut = dice.choice([None, 0, 2])
            served.append(pair.server.ask(prompt, dice.randrange(1, 120), most_drafts=cut))
        if dice.random() < 0.02:
            pair.server.leave(dice.choice(served))
        pair.server.step()
    pair.server.run()
    for request in served:
        ids = request.ids[: request.n_prompt]
        while len(ids) < len(request.ids):
            ids.append(pair.choose(ids))
        assert request.ids == ids


def test_the_drafter_dies_and_comes_back(vllm):
    pair = vllm()
    first = pair.drafter()
    pair.serves_until(lambda: pair.accepted() > ENOUGH, "the first drafts")
    first.kill()
    pair.serves([1, 2, 3])
    pair.drafter(name="second")
    before = pair.accepted()
    pair.serves_until(lambda: pair.accepted() > before + ENOUGH, "the second drafts")


@pytest.fixture
def liar(mesh):
    """Connects a drafter under the test's control."""

    class Reached:
        server = None
        port = mesh.port

    with Peer(Reached) as peer:
        yield peer


@cases(
    "lies",
    """[1, 2, 3]
    [255, 255]
    [256]
    [2147483647]""",
)
def test_a_lying_drafter(vllm, liar, lies):
    """Each frame names its place rightly. What it drafts is wrong, or no id at all."""
    pair = vllm()
    liar.hello("liar")
    pair.attached()
    request = pair.server.ask([5, 6, 7], TOKENS)
    while pair.server.busy:
        pair.server.step()
        while liar.socket.poll(0):
            message = liar.on_event()
            if isinstance(message, m.Truth | m.Sync):
                crc = Prefix(liar.truth).crc
                draft = m.Draft(message.session, len(liar.truth), crc, ids=tuple(lies))
                liar.say(draft)
    ids = request.ids[:3]
    while len(ids) < len(request.ids):
        ids.append(pair.choose(ids))
    assert request.ids == ids


def test_a_wrong_key_changes_nothing(vllm, mesh):
    """A drafter whose key nobody has allowed does not attach; another one drafts."""
    keys = KeyFolder(mesh.folder / "keys")
    public = keys.new().public.hex()
    pair = vllm(keys=keys.path)
    options = []
    for name in ("known", "stranger"):
        own = KeyFolder(mesh.folder / name)
        key = own.new().public.hex()
        own.allow(Listing.VERIFIERS, public, mesh.address)
        options.append(("--keys", own.path))
        if name == "known":
            keys.allow(Listing.DRAFTERS, key, name)
    known, stranger = options
    pair.drafter("", *known)
    mesh.drafter("", *stranger, name="stranger", ready=False).event("refused")
    pair.serves_until(lambda: pair.accepted() > ENOUGH, "the known one drafts")
    assert len(pair.stats()["peers"]) == 1


def test_who_asks_a_drafter_is_told_the_servers_own_address(vllm):
    pair = vllm()
    drafter = pair.drafter()
    generate(drafter, "hello", max_tokens=4).refused(2, HTTP)


@cases("sampled", "[[1]] [[1],[2]] [[]]")
def test_an_unknown_call_has_no_drafts(vllm, sampled):
    """Nothing is raised, and nothing is drafted from then on."""
    pair = vllm()
    assert pair.proposer.propose(sampled, [1], [[1]]) == [[] for _ in sampled]
    assert pair.proposer.service is None
    pair.serves([1, 2, 3], tokens=5)


def test_rows_that_cannot_be_are_survived(vllm):
    """Lengths without ids, a row that shrinks, ids beyond the vocabulary, no rows at all."""
    pair = vllm()
    lengths = np.zeros(4, np.int32)
    ids = np.full((4, 2048), 9999, np.int32)
    pair.proposer.propose([], lengths, ids)
    for length in (0, 5, 3, 2047, 1):
        lengths[:] = length
        answer = pair.proposer.propose([[1], [], [2, 3]], lengths, ids, None, unknown=1)
        assert len(answer) == 3
        assert not any(draft >= 256 for drafts in answer for draft in drafts)


def test_other_workers_of_a_model_bind_nothing(vllm):
    first = vllm()
    config = config_of(tensor_parallel_size=2, rank=1)
    settings = ProposerSettings(bind=first.mesh.address, insecure=True)
    other = Proposer(config, settings=settings, vocabulary=SimTarget().vocabulary)
    other.load_model()
    assert other.service is None
    assert other.propose([[1]]) == [[]]


@pytest.fixture(scope="module")
def bundled_target():
    """The choice of the bundled target after any ids."""
    settings = ModelSettings(engine="llama", model=bundled("target.gguf"), ctx=256, threads=1)
    engine = load_verifier(settings, lambda _: None)
    before = []

    def choose(ids):
        nonlocal before
        held = min(common_length(before, ids), len(ids) - 1)
        before = list(ids)
        return int(row_after(engine, ids, held).argmax())

    yield choose, engine.tokenizer
    engine.close()


@pytest.mark.models
def test_the_bundled_pair(vllm, bundled_target):
    """The bundled draft model drafts for texts that the bundled target chooses."""
    choose, tokenizer = bundled_target
    pair = vllm(choose, vocabulary=tokenizer.vocabulary)
    pair.drafter(bundled("drafter.gguf"), engine="llama")
    prompt = tokenizer.encode("def fibonacci(n):\n    ")

    def enough():
        pair.serves(prompt, tokens=40)
        return pair.accepted() > 20

    until(enough, "its drafts are accepted")
