"""A verifier's session run to its end against a target that is a function of the committed ids."""

import numpy as np

from specmesh.core import events as ev
from specmesh.core.draft_length.drafter_estimates import DrafterEstimates
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_slots import KVSlot
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Scored
from specmesh.core.rounds import Round
from specmesh.core.verifier.predicted_text import PredictedText
from specmesh.core.verifier.session import VerifierSession
from specmesh.wire import messages as m


def crc(*ids):
    return Prefix(ids).crc


def measured(table):
    """Return the costs of steps by their rows: seconds, measured once."""
    costs = StepCosts()
    for rows, seconds in table.items():
        costs.record(rows, seconds)
    return costs


def session(
    ids,
    params,
    limits,
    n_prompt=None,
    constraint=None,
    *,
    attached=True,
    predicted=None,
):
    """Return a session on these ids, with a drafter that has no history yet.

    predicted: ids of the client's prediction.
    """
    made = VerifierSession(
        id=1,
        ids=tuple(ids),
        params=params,
        limits=limits,
        costs=StepCosts(),
        speculations=Speculations(),
        now=0.0,
        n_prompt=n_prompt,
        constraint=constraint,
        predicted=None if predicted is None else PredictedText(predicted),
    )
    if attached:
        made.attach(DrafterEstimates())
    return made


def generate(
    made,
    row,
    drafts=None,
    scores=None,
    back_after=None,
):
    """Run a session to its end; return its rounds.

    row: returns the target's logits after the prefix with this CRC.
    drafts: returns ids that may follow the session's.
    scores: takes those of an echoed prompt.
    back_after: rounds after which it is set back, and goes on in an empty sequence.
    """
    memory = Prefix()
    rounds = []

    def read(*ids):
        rows = []
        for token in ids:
            memory.extend([token])
            rows.append(row(memory.crc))
        return np.stack(rows)

    while made.finished is None:
        if len(rounds) == back_after:
            back_after = None
            made.set_back()
            memory = Prefix()
            made.go_on(KVSlot(seq=0))
        if drafts is not None:
            ids = tuple(drafts(made))
            draft = m.Draft(1, len(made.prefix), made.prefix.crc, ids)
            made.take(draft, 0.0)
        plan = made.plan(1e9)
        if isinstance(plan, ev.Prefill):
            assert plan.position == len(memory)
            rows = read(*plan.ids)
            for told in made.prefilled(len(plan.ids), rows if plan.stepwise else None):
                if isinstance(told, Scored) and scores is not None:
                    scores += told.logprobs
            continue
        assert isinstance(plan, ev.Verify)
        made.begin(0.0)
        rows = read(plan.last, *plan.drafts)
        for effect in made.stepped(plan, rows, 0.0, seconds=0.01):
            if isinstance(effect, ev.Rollback):
                memory.truncate(effect.length)
            elif isinstance(effect, Round):
                rounds.append(effect)
    return rounds


def ids_of(rounds):
    ids = ()
    for one in rounds:
        ids += one.text.ids
    return ids


def mostly_right(row, luck, n_vocab=16):
    """Return a drafter that proposes the target's own ids three times in four."""

    def drafts(made):
        known = Prefix(made.prefix[0:])
        for _ in range(3):
            sampler = made.sampler.after(known[0:])
            draft = sampler.choose(row(known.crc), len(known))
            if luck.random() >= 0.75:
                draft = luck.randrange(1, n_vocab)
            known.extend([draft])
        return known[len(made.prefix) :]

    return drafts
