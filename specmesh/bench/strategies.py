"""The strategies on the same prompts and seeds, as a table or JSON: how many drafts stand, how fast, at what size."""

from dataclasses import dataclass

from specmesh.bench.measure import Plan
from specmesh.bench.run import ALONE, Outcome, Sample, Variant, aggregate
from specmesh.client import Json
from specmesh.core.strategy import Strategy, is_exact

_HEADINGS = (
    f"{'':<14}{'tokens/s':>9}{'spread':>16}{'speed-up':>10}{'accept':>8}{'per round':>11}{'B/token':>9}"
    f"{'same':>8}{'exact':>7}"
)


def variants(draft_n: int | str) -> tuple[Variant, ...]:
    """The verifier alone, then each strategy."""
    return (ALONE, *(Variant(strategy.value, draft_n, strategy.value) for strategy in Strategy))


@dataclass(frozen=True, slots=True)
class Result:
    """What was run, and measured."""

    plan: Plan
    samples: list[Sample]

    def as_json(self) -> Json:
        """Everything but the texts."""
        outcomes = aggregate(self.samples, self.plan.variants)
        return {
            "schema_version": 1,
            "prompts": len(self.plan.prompts),
            "iterations": self.plan.iterations,
            "max_tokens": self.plan.max_tokens,
            "sampling": self.plan.sampling,
            "strategies": [outcome.as_json() | {"exact": is_exact(outcome.variant)} for outcome in outcomes],
        }

    def lines(self) -> list[str]:
        """The table."""
        plan = self.plan
        sampling = ", ".join(f"{name} {value}" for name, value in plan.sampling.items())
        return [
            f"prompts {len(plan.prompts)}, iterations {plan.iterations}, at most {plan.max_tokens} tokens; {sampling}",
            "",
            _HEADINGS,
            *(_line(one) for one in aggregate(self.samples, plan.variants)),
            "accept: of the drafts verified; same: texts equal to the first alone; exact: texts are as likely",
        ]


def _line(one: Outcome) -> str:
    rate = one.tokens_per_second
    speedup = "-" if one.speedup is None else f"{one.speedup.median:.2f}x"
    acceptance = "-" if one.acceptance_rate is None else f"{one.acceptance_rate:.1%}"
    return (
        f"{one.variant:<14}{rate.median:>9.1f}{f'{rate.low:.1f}-{rate.high:.1f}':>16}{speedup:>10}{acceptance:>8}"
        f"{one.mean_length:>11.2f}{one.bytes_per_token:>9.1f}{f'{one.identical}/{one.compared}':>8}"
        f"{'yes' if is_exact(one.variant) else 'no':>7}"
    )
