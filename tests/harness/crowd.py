"""Clients of a target whose cells are too few for all of them."""

from collections import Counter

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import Step
from specmesh.core.kv_pool import KVPool
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Request
from specmesh.core.rounds import Round
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.target import Target
from specmesh.engines.steps import limits_of, run_step
from specmesh.errors import NoRoom, SpecmeshError

OFTEN = 8000  # steps after which all sessions would have ended, if none was held up
SYSTEM = tuple(range(100, 130))


class Crowd:
    """A core with its engine, and clients that come, go and pause.

    seen: counts of what happened.
    """

    def __init__(self, engine, rng, cells, host_ids):
        """Begin without clients.

        cells, host_ids: that the core shares out, and that it has on the host.
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
            pool=KVPool(cells, host_ids),
            checkpoints=capabilities.checkpoints,
            windows=capabilities.windows,
        )
        target = Target(
            limits=limits_of(engine),
            costs=StepCosts(),
            slots=slots,
            n_batch=info.n_batch,
            max_sessions=info.max_sessions,
            guests=info.guests,
            prefill_rows=8,
        )
        self.core = VerifierCore(target)
        self.engine = engine
        self.rng = rng
        self.now = 0.0
        self.asked = {}  # client: (prompt, most tokens)
        self.shown = {}
        self.ends = {}
        self.sessions = {}
        self.paused = set()
        self.seen = Counter()

    def ask(self, prompt, most):
        client = len(self.asked) + 1
        self.asked[client] = (prompt, most)
        self.shown[client] = ()
        params = SessionParams(SamplingParams(), most)
        request = Request(None, prompt, params)
        opening = vev.Opening(client=client, request=request, ids=prompt, n_prompt=len(prompt))
        self.tell(opening)

    def ask_at_random(self):
        rng = self.rng
        prompt = SYSTEM[: rng.choice((0, 20, 30))]
        prompt += tuple(rng.choices(range(32, 36), k=rng.randint(1, 50)))
        self.ask(prompt, rng.choice((1, 4, 20, 60)))

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
                case vev.ToClient(client, vev.SessionEnded() as end):
                    self.ends.setdefault(client, end.reason.name.lower())
                case vev.RequestRefused(client, error):
                    raise AssertionError(error)
                case vev.Noted(name):
                    self.seen[name] += 1

    def turn(self):
        """Run the next step, if there is one."""
        self.now += 0.01
        self.take(self.core.handle(vev.Signal.TIME_UP, self.now))
        step = self.core.next_step(self.now)
        if not isinstance(step, Step):
            return False
        try:
            result = run_step(self.engine, step)
        except NoRoom as error:
            self.seen["full"] += error.full
            result = error
        except SpecmeshError as error:
            result = error
        self.take(self.core.finish(step, result, self.now, self.now))
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
