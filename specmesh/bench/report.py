"""A finished benchmark as a table with its assessment, or as JSON."""

from dataclasses import asdict, dataclass

from specmesh.bench.assess import assess
from specmesh.bench.measure import Plan
from specmesh.bench.run import Outcome, Sample, aggregate, lines
from specmesh.bench.steps import steps_ms
from specmesh.client import Json


@dataclass(frozen=True, slots=True)
class Result:
    """What was run and measured, and the daemon's /stats after it."""

    plan: Plan
    samples: list[Sample]
    snapshot: Json

    def lines(self) -> list[str]:
        """What was run, the table, the assessment."""
        outcomes = aggregate(self.samples)
        plan = self.plan
        return [
            f"{self._model()}, drafter {', '.join(self._drafters()) or 'none'}",
            f"prompts {len(plan.prompts)}, iterations {plan.iterations}, at most {plan.max_tokens} tokens",
            "",
            *lines(outcomes),
            "",
            *self._assessment(outcomes),
        ]

    def as_json(self) -> Json:
        """Everything but the texts."""
        outcomes = aggregate(self.samples)
        return {
            "schema_version": 1,
            "model": self.snapshot.get("model"),
            "drafters": self._drafters(),
            "prompts": len(self.plan.prompts),
            "iterations": self.plan.iterations,
            "max_tokens": self.plan.max_tokens,
            "variants": [outcome.as_json() for outcome in outcomes],
            "assessment": self._assessment(outcomes),
            "samples": [_told(one) for one in self.samples],
        }

    def _assessment(self, outcomes: list[Outcome]) -> list[str]:
        costs = steps_ms(self.snapshot) if "steps_ms" in self.snapshot else {}
        return assess(outcomes, costs)

    def _model(self) -> str:
        model = self.snapshot.get("model")
        return f"{model.get('name')} on {model.get('backend')}" if isinstance(model, dict) else "unknown model"

    def _drafters(self) -> list[str]:
        return sorted({one.drafter for one in self.samples if one.drafter is not None})


def _told(one: Sample) -> Json:
    """A sample with its number of tokens in place of them."""
    told: Json = asdict(one)
    del told["ids"]
    return told | {"tokens": len(one.ids)}
