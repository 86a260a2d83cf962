"""The sessions that a drafter follows."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from harness.loops import welcome

from specmesh.core.draft_session import SHADOW
from specmesh.core.events import Told
from specmesh.core.prefix import Prefix
from specmesh.core.scheduling.kv_slots import Places
from specmesh.daemons.drafter.draft_sessions import Following
from specmesh.daemons.drafter.statistics import DrafterStats
from specmesh.engines.base import Ask
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.errors import EngineError
from specmesh.wire.messages import Done, Draft, Message, Opened, Shadow


def followed() -> tuple[Following, SimDrafter]:
    """Session 7, whose drafter this is, of nobody here."""
    dealer, engine = SimpleNamespace(send=lambda _: 1), SimDrafter(SimSettings())
    home = SimpleNamespace(learned=lambda *_: None, over=lambda *_: None)
    following = Following(dealer, engine, DrafterStats(0.0), "tcp://verifier", home, Places(1, "cut", 99))  # type: ignore[arg-type]
    following.found(welcome())
    following.opened(Opened(7, 0, 3, 0.0, 0, 1.0, 0), 0.0)
    following.heard(7, Told(0, 0, (1, 2, 3), 4, sync=True), 0, 0.0)
    return following, engine


@pytest.mark.parametrize(
    ("own", "asked", "drafted"), [(None, 0.8, 0.8), (0.3, 0.8, 0.3), (0.0, 0.8, 0.0), (0.3, 0.0, 0.0), (None, 0.0, 0.0)]
)
def test_drafts_may_have_a_temperature_of_their_own(own: float | None, asked: float, drafted: float):
    """Where a text is sampled; of a greedy text the most likely token is drafted whatever was said."""
    dealer, home = SimpleNamespace(send=lambda _: 1), SimpleNamespace()
    places = Places(1, "cut", 0)
    following = Following(dealer, SimDrafter(SimSettings()), DrafterStats(0.0), "tcp://verifier", home, places, own)  # type: ignore[arg-type]
    following.opened(Opened(7, 0, 3, temperature=asked, top_k=40, top_p=0.9, seed=5), 0.0)
    params = following.live[7].sampler.params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (drafted, 40, 0.9, 5)


def test_a_grammar_that_breaks_ends_its_drafts_alone():
    """Whatever its library raises where a guess is to be chosen: the session is followed without drafting."""
    following, engine = followed()

    def broken(*_: object) -> None:
        raise EngineError("the library gave up")

    live = following.live[7]
    live.guided = SimpleNamespace(sampler=broken, spent=None)  # type: ignore[assignment]
    assert following.work(engine, 0.0)
    assert not following.work(engine, 0.0)
    assert (following.live[7], live.seq, live.machine.drafted) == (live, None, 0)


class Counting(SimDrafter):
    """A draft model that notes for how many sequences it guessed at once; it may refuse more than one."""

    def __init__(self, settings: SimSettings, *, refuses: bool = False) -> None:
        super().__init__(settings)
        self.calls: list[int] = []
        self.refuses = refuses

    def predict_many(self, asks: Sequence[Ask]) -> list[int | None]:
        self.calls.append(len(asks))
        if self.refuses and len(asks) > 1:
            raise EngineError("too many at once")
        return super().predict_many(asks)


class Followers:
    """A drafter's sessions, and what it says of them."""

    def __init__(self, engine: SimDrafter) -> None:
        self.said: list[Message] = []
        self.engine = engine
        dealer = SimpleNamespace(send=self._send)
        home = SimpleNamespace(learned=lambda *_: None, over=lambda *_: None)
        places = Places(engine.info.n_seq, "cut", 0)
        self.following = Following(dealer, engine, DrafterStats(0.0), "tcp://verifier", home, places)  # type: ignore[arg-type]
        self.following.found(welcome())

    def _send(self, message: Message) -> int:
        self.said.append(message)
        return 1

    def tell(self, session: int, text: bytes, draft_n: int) -> None:
        """Announce a session with this text."""
        self.following.opened(Opened(session, 0, len(text), 0.0, 0, 1.0, 0), 0.0)
        self.following.heard(session, Told(0, 0, tuple(text), draft_n, sync=True), 0, 0.0)

    def work(self) -> "Followers":
        """Work until nothing is left to do."""
        while self.following.work(self.engine, 0.0):
            pass
        self.following.flush()
        return self

    def drafts(self, session: int) -> list[int]:
        """What was drafted for a session."""
        return [token for one in self.said if isinstance(one, Draft) and one.session == session for token in one.ids]


def test_several_sessions_are_drafted_for_at_once():
    """One call for all that want drafts; they are the drafts that each gets alone."""
    together = Followers(Counting(SimSettings(alpha=0.9)))
    for session in (1, 2, 3):
        together.tell(session, b"text number %d" % session, 4)
    together.work()
    assert together.engine.calls.count(3) >= 4
    for session in (1, 2, 3):
        alone = Followers(Counting(SimSettings(alpha=0.9)))
        alone.tell(session, b"text number %d" % session, 4)
        alone.work()
        assert set(alone.engine.calls) == {1}
        assert alone.drafts(session) == together.drafts(session)
        assert len(alone.drafts(session)) >= 4


def test_an_engine_that_fails_over_several_gets_one():
    """The drafts are the same, one session after the other, from then on."""
    failing, fine = (Followers(Counting(SimSettings(alpha=0.9), refuses=refuses)) for refuses in (True, False))
    for followers in (failing, fine):
        for session in (1, 2):
            followers.tell(session, b"text number %d" % session, 4)
        followers.work()
    assert failing.engine.calls.count(2) == 1
    assert [failing.drafts(session) for session in (1, 2)] == [fine.drafts(session) for session in (1, 2)]


def test_those_that_drafts_are_asked_for_come_first():
    """A session that only follows gives its place to one that drafts are asked for, and gets it back."""
    followers = Followers(Counting(SimSettings(n_seq=1)))
    followers.tell(1, b"following", 4)
    followers.work()
    followers.following.heard(1, Told(9, Prefix(b"following").crc, (1,), 0, sync=False), 0, 0.0)
    followers.work()
    followers.tell(2, b"asked for", 4)
    followers.work()
    live = followers.following.live
    assert (live[1].seq, live[2].seq) == (None, 0)
    assert len(followers.drafts(2)) >= 4
    followers.tell(3, b"one too many", 4)
    followers.work()
    assert live[3].seq is None
    followers.following.done(Done(2, "moved", 0), 0.0)
    followers.following.done(Done(3, "moved", 0), 0.0)
    followers.work()
    assert live[1].seq == 0


@pytest.mark.parametrize("refuses", [False, True])
def test_several_sessions_are_shadowed_at_once(refuses: bool):
    """One call for all that are asked for nothing; where the engine refuses that, each by itself."""
    followers = Followers(Counting(SimSettings(alpha=0.9), refuses=refuses))
    for session in (1, 2, 3):
        prompt = b"text number %d" % session
        followers.tell(session, prompt, 0)
        told = Told(len(prompt), Prefix(prompt).crc, tuple(range(65, 65 + SHADOW)), 0, sync=False)
        followers.following.heard(session, told, 0, 0.0)
    followers.work()
    followers.engine.calls.clear()
    while followers.following.shadow(followers.engine):
        followers.work()
    together = followers.engine.calls.count(3)
    assert together == (1 if refuses else SHADOW)
    shadows = [one for one in followers.said if isinstance(one, Shadow)]
    assert sorted(one.session for one in shadows) == [1, 2, 3]
    assert all(len(one.ids) == SHADOW for one in shadows)


def test_who_has_nothing_to_do_takes_no_place():
    """Its prompt would displace another's, which may be gone on from; it has one once drafts are asked for."""
    following, engine = followed()
    while following.work(engine, 0.0):
        pass
    following.done(Done(7, "stop", 3, {}), 0.0)
    kept = following.places.snapshot()["kept_tokens"]
    following.opened(Opened(8, 0, 3, 0.0, 0, 1.0, 0), 0.0)
    following.heard(8, Told(0, 0, (9, 9, 9), 0, sync=True), 0, 0.0)
    assert not following.work(engine, 0.0)
    assert following.live[8].seq is None
    assert following.places.snapshot()["kept_tokens"] == kept > 0
    following.heard(8, Told(3, Prefix((9, 9, 9)).crc, (1,), 2, sync=False), 0, 0.0)
    assert following.work(engine, 0.0)
    assert following.live[8].seq is not None
