"""Texts that a fake vLLM writes, with the core that drafts for them in virtual time."""

from collections.abc import Sequence
from typing import Any

from harness.fake_vllm import FakeVllm, Served, config_of
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.session_params import TargetLimits
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.followed import TargetsOwnMemory
from specmesh.core.verifier.target import Target
from specmesh.vllm.drafting import Drafting, TargetBounds
from specmesh.vllm.served_model import served_model
from specmesh.wire import messages as m

END = 255
N_VOCAB = 256
DRAFTS = 4
STEP_S = 0.02
DRAFTER = b"drafter"


def next_id(ids: Sequence[int]) -> int:
    """Return the target's choice: a hash of the ids; now and then it ends the text."""
    crc = Prefix(ids).crc
    return END if crc % 101 == 0 else crc % 97 + 1


def right_drafts(ids: Sequence[int], count: int) -> list[int]:
    """Return what the target will choose after these ids."""
    text = list(ids)
    for _ in range(count):
        text.append(next_id(text))
    return text[len(ids) :]


class FollowedTexts:
    """A proposer whose core has a drafter in this process, which is asked in virtual time.

    It drafts on what TRUTH and SYNC have brought it. wrong: every so many drafts of a chain is
    wrong, 0 for none.

    texts: by session, as the drafter has them. frames: that it was sent.
    """

    def __init__(
        self, rows: int = 16, *, wrong: int = 0, call_s: float = 0.0, drafts: int = DRAFTS
    ) -> None:
        """Begin with a drafter that is attached.

        call_s: seconds until the clock is read again. drafts: vLLM's num_speculative_tokens.
        """
        self.config = config_of(drafts, n_vocab=N_VOCAB)
        model = served_model(self.config)
        limits = TargetLimits(
            2048, N_VOCAB, frozenset(), max_drafts=model.guesses, max_copied=model.drafts
        )
        target = self.target = Target(
            limits=limits,
            costs=StepCosts(),
            slots=TargetsOwnMemory(rows),
            n_batch=rows * (model.drafts + 1),
            max_sessions=rows,
        )
        self.core = VerifierCore(target)
        bounds = TargetBounds(drafts=model.drafts, n_vocab=N_VOCAB, end_ids=frozenset({END}))
        self.now = 0.0
        self._call_s = call_s
        self.drafting = Drafting(
            self.core, bounds, self._carry_out, patience=0.0, clock=self._clock
        )
        self.texts: dict[int, list[int]] = {}
        self.ended: dict[m.FinishReason, int] = {}
        self._wrong = wrong
        self._frames: list[m.Draft] = []
        self._rows = rows
        self.drafting.put(vev.DrafterJoined(DRAFTER, 2**31), 0.0)

    def propose(
        self, sampled: Sequence[Sequence[int]], lengths: Any, ids: Any, **_: object
    ) -> list[list[int]]:
        """Answer as the proposer does."""
        self.now += STEP_S
        frames = self._frames
        self._frames = []
        for frame in frames:
            self.drafting.put(vev.FromDrafter(DRAFTER, frame), self.now - STEP_S / 2)
        if len(sampled) > self._rows:
            return [[] for _ in sampled]
        return self.drafting.propose(sampled, lengths[: len(sampled)].tolist(), ids)

    def _clock(self) -> float:
        self.now += self._call_s
        return self.now

    def _carry_out(self, effects: Sequence[vev.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, vev.ToDrafter):
                self._sent(effect.what)
            elif isinstance(effect, vev.ToClient) and isinstance(effect.what, vev.SessionEnded):
                reason = effect.what.reason
                self.ended[reason] = self.ended.get(reason, 0) + 1

    def _sent(self, frame: vev.DrafterFrame) -> None:
        if isinstance(frame, m.Done):
            self.texts.pop(frame.session, None)
        elif isinstance(frame, m.Truth | m.Sync):
            text = self.texts.setdefault(frame.session, [])
            assert Prefix(text[: frame.base]).crc == frame.prefix_crc
            text[frame.base :] = frame.ids
            drafts = right_drafts(text, frame.draft_n)
            if self._wrong:
                drafts = [
                    draft % 97 + 1 if place % self._wrong == self._wrong - 1 else draft
                    for place, draft in enumerate(drafts, len(text))
                ]
            if drafts:
                crc = Prefix(text).crc
                self._frames.append(m.Draft(frame.session, len(text), crc, ids=tuple(drafts)))


def server(texts: FollowedTexts, **options: Any) -> FakeVllm:
    """Return a fake vLLM that asks these for drafts."""
    return FakeVllm(texts, next_id, texts.config, end_ids=[END], **options)


def checked(request: Served) -> None:
    """Check that a text is the target's own."""
    assert request.text == right_drafts(request.ids[: request.n_prompt], len(request.text))
