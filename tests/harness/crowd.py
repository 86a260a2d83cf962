"""Clients of a target whose cells are too few for all of them."""

from collections import Counter

from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import DraftStep, Wait
from specmesh.core.kv_pool import KVPool
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Request
from specmesh.core.rounds import Round
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.target import Target
from specmesh.daemons.verifier.daemon import local_drafting
from specmesh.engines.steps import limits_of, run_either
from specmesh.errors import NoRoom, SpecmeshError

OFTEN = 8000  # steps after which all sessions would have ended, if none was held up
SYSTEM = tuple(range(100, 130))


class Crowd:
    """A core with its engine, and clients that come, go and pause.

    seen: counts of what happened.
    shown, committed: ids of each client's text, the latter with an end id. reports: at its end.
    draft_n, draft_sources: of its requests, at random; all sources where none are given.
    row_s: seconds of a step for each row beyond the first. draft_s: of each draft.
    pause_s: between two steps.
    """

    draft_n = (None,)
    draft_sources = ()
    row_s = 0.0
    draft_s = 5e-4
    pause_s = 0.01

    def __init__(self, engine, rng, cells, host_ids, drafter=None):
        """Begin without clients.

        cells, host_ids: that the core shares out, and that it has on the host.
        drafter: a LocalDrafter beside the engine.
        """
        info = engine.info
        capabilities = info.capabilities
        slots = KVSlots(
            info.max_sessions,
            capabilities.reuse,
            room=0,
            offloads=capabilities.offloads,
            guests=info.guests,
            n_ctx=info.n_ctx,
            pool=KVPool(cells, host_ids) if cells else None,
            checkpoints=capabilities.checkpoints,
            windows=capabilities.windows,
        )
        costs = self.costs = StepCosts()
        speculations = Speculations()
        target = Target(
            limits=limits_of(engine),
            costs=costs,
            slots=slots,
            n_batch=info.n_batch,
            max_sessions=info.max_sessions,
            guests=info.guests,
            prefill_rows=8,
            speculations=speculations,
            local=None if drafter is None else local_drafting(drafter, costs, speculations),
        )
        self.drafter = drafter
        self.core = VerifierCore(target)
        self.local = target.local
        self.engine = engine
        self.rng = rng
        self.now = 0.0
        self.asked = {}  # client: (prompt, most tokens)
        self.shown = {}
        self.committed = {}
        self.ends = {}
        self.reports = {}
        self.sessions = {}
        self.paused = set()
        self.seen = Counter()
        self.failed = []  # sessions whose drafting failed, as often as it did

    def ask(self, prompt, most, draft_n=None, sources=None):
        client = len(self.asked) + 1
        self.asked[client] = (prompt, most)
        self.shown[client] = ()
        self.committed[client] = ()
        params = SessionParams(SamplingParams(), most, draft_n=draft_n, draft_sources=sources)
        request = Request(None, prompt, params)
        opening = vev.Opening(client=client, request=request, ids=prompt, n_prompt=len(prompt))
        self.tell(opening)

    def ask_at_random(self):
        rng = self.rng
        prompt = SYSTEM[: rng.choice((0, 20, 30))]
        prompt += tuple(rng.choices(range(32, 36), k=rng.randint(1, 50)))
        most = rng.choice((1, 4, 20, 60))
        draft_n = rng.choice(self.draft_n)
        sources = rng.choice(self.draft_sources) if self.draft_sources else None
        self.ask(prompt, most, draft_n, sources)

    def pause_at_random(self):
        client = self.rng.choice([*self.asked])
        self.tell(vev.ClientPaused(client, paused=client not in self.paused))
        self.paused ^= {client}

    def leave_at_random(self):
        client = self.rng.choice([*self.asked])
        if client not in self.ends:
            self.ends[client] = "left"
            self.tell(vev.ClientLeft(client))

    def tell(self, event):
        self.take(self.core.handle(event, self.now))

    def take(self, effects):
        for effect in effects:
            match effect:
                case vev.ToClient(client, vev.Began()):
                    self.seen["began"] += 1
                case vev.ToClient(client, Round() as done):
                    self.shown[client] += done.text.ids
                    self.committed[client] += done.ids
                    for drafts in done.by_source:
                        if self.local is not None and drafts.source == self.local.name:
                            self.seen["drafted"] += drafts.tested
                            self.seen["accepted"] += drafts.accepted
                case vev.ToClient(client, vev.SessionEnded() as end):
                    self.ends.setdefault(client, end.reason.name.lower())
                    self.reports[client] = end.report
                case vev.RequestRefused(client, error):
                    raise AssertionError(error)
                case vev.Noted(name, fields):
                    self.seen[name] += 1
                    if name == "drafting_failed":
                        self.failed.append(fields["session"])

    def step_seconds(self, rows):
        return 5e-3 + self.row_s * (rows - 1)

    def seconds(self, step):
        """Return the seconds of a step; drafts of several texts are made together."""
        if not isinstance(step, DraftStep):
            return self.step_seconds(step.rows)
        ids = sum(len(row.ids) for row in step.rows)
        drafts = max(row.draft_n for row in step.rows)
        return self.draft_s * drafts + ids * 1e-5

    def calibrate(self):
        """Have the core know the seconds of the target's steps."""
        for rows in (1, 2, 4, 8, 9, 16, 17, 25):
            self.costs.record(rows, self.step_seconds(rows))

    def turn(self):
        """Run the next step, if there is one."""
        self.now += self.pause_s
        self.take(self.core.handle(vev.Signal.TIME_UP, self.now))
        step = self.core.next_step(self.now)
        if isinstance(step, Wait):
            return False
        self.seen[type(step).__name__] += 1
        started = self.now
        self.now += self.seconds(step)
        try:
            result = run_either(self.engine, self.drafter, step)
        except NoRoom as error:
            self.seen["full"] += error.full
            result = error
        except SpecmeshError as error:
            result = error
        self.take(self.core.finish(step, result, started, self.now))
        return True

    def finish(self):
        for client in self.paused:
            self.tell(vev.ClientPaused(client, paused=False))
        for _ in range(OFTEN):
            if len(self.ends) == len(self.asked):
                return
            assert self.turn(), "sessions are left, and none has a step"
        raise AssertionError("sessions go on for ever")

    def crowd(self, acts=60):
        """Have many clients come, some of which pause or leave; run until all have an end."""
        come = self.ask_at_random
        for _ in range(acts):
            act = self.rng.choice((come, come, self.pause_at_random, self.leave_at_random))
            if act == come or self.asked:
                act()
            for _ in range(self.rng.randint(0, 6)):
                self.turn()
        self.finish()

    def check(self, alone):
        """Assert that each text is as `alone` returns it for a prompt and the most tokens."""
        for client, (prompt, most) in self.asked.items():
            if self.ends[client] != "left":
                assert self.shown[client] == alone(prompt, most)
