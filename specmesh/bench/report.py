"""A finished benchmark as a table with its assessment, or as JSON."""

from dataclasses import asdict, dataclass

from specmesh.bench.assess import assess
from specmesh.bench.run import Outcome, Plan, Sample, aggregate, lines
from specmesh.bench.steps import measured
from specmesh.client import Json


@dataclass(frozen=True, slots=True)
class Result:
    """What was run and measured, and the daemon's /stats after it."""

    plan: Plan
    samples: list[Sample]
    snapshot: Json

    def lines(self) -> list[str]:
        """Return what was run, the table, the assessment."""
        outcomes, plan = aggregate(self.samples), self.plan
        model = self.snapshot.get("model")
        name = f"{model.get('name')} on {model.get('backend')}" if isinstance(model, dict) else "unknown model"
        return [
            f"{name}, drafter {', '.join(self._drafters()) or 'none'}",
            f"prompts {len(plan.prompts)}, iterations {plan.iterations}, at most {plan.max_tokens} tokens",
            "",
            *lines(outcomes),
            "",
            *self._assessment(outcomes),
        ]

    def as_json(self) -> Json:
        """Return everything but the texts."""
        outcomes = aggregate(self.samples)
        samples = [asdict(one) | {"tokens": len(one.ids)} for one in self.samples]
        return {
            "schema_version": 1,
            "model": self.snapshot.get("model"),
            "drafters": self._drafters(),
            "prompts": len(self.plan.prompts),
            "iterations": self.plan.iterations,
            "max_tokens": self.plan.max_tokens,
            "variants": [outcome.as_json() for outcome in outcomes],
            "assessment": self._assessment(outcomes),
            "samples": [{name: one[name] for name in one if name != "ids"} for one in samples],
        }

    def _assessment(self, outcomes: list[Outcome]) -> list[str]:
        return assess(outcomes, measured(self.snapshot)[0] if "steps_ms" in self.snapshot else {})

    def _drafters(self) -> list[str]:
        return sorted({one.drafter for one in self.samples if one.drafter is not None})
