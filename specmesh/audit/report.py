"""A finished audit as a table or as JSON."""

from dataclasses import dataclass

from specmesh.audit.compare import BOTH, LIKELIEST, TOO_NOISY, Text, Verdict
from specmesh.audit.run import Divergence, Found
from specmesh.client import Json

SHOWN = 20
"""Divergences in the table; JSON has all."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one way of drafting."""

    way: int | str
    texts: int
    tokens: int
    drafted: int
    accepted: int
    near_ties: int
    errors: int

    @property
    def identical(self) -> int:
        """Texts that do not part."""
        return self.texts - self.near_ties - self.errors


@dataclass(frozen=True, slots=True)
class Result:
    """An audit, and the daemon's /stats after it."""

    found: Found
    snapshot: Json

    @property
    def failed(self) -> bool:
        """Whether anything is an error."""
        return bool(self.undrafted or self.too_noisy or any(one.verdict is Verdict.ERROR for one in self.divergences))

    @property
    def divergences(self) -> tuple[Divergence, ...]:
        """Where texts part."""
        return self.found.divergences

    @property
    def too_noisy(self) -> bool:
        """Whether logits differ by more than kernels explain, although the texts agree: at all, where the verifier
        promises the same bits."""
        return self.found.noise > (0.0 if promises_bits(self.snapshot) else TOO_NOISY)

    @property
    def undrafted(self) -> list[int | str]:
        """Ways that ask for drafts in every step and had none at all, or all ways where none had any."""
        rows = [row for row in self.rows() if row.way != 0]
        none = [row for row in rows if not row.drafted]
        return [row.way for row in none if row.way != "auto" or len(none) == len(rows)]

    def rows(self) -> list[Row]:
        """One for each way of drafting."""
        return [self._row(way, texts) for way, texts in self.found.drafted.items()]

    def _row(self, way: int | str, texts: tuple[Text, ...]) -> Row:
        verdicts = [one.verdict for one in self.divergences if one.way == way]
        return Row(
            way,
            len(texts),
            sum(len(text.ids) for text in texts),
            sum(text.drafted for text in texts),
            sum(text.accepted for text in texts),
            verdicts.count(Verdict.TIE),
            verdicts.count(Verdict.ERROR),
        )

    def lines(self) -> list[str]:
        """What was run, a row for each way of drafting, the divergences."""
        found = self.found
        heads = ("draft_n", "texts", "tokens", "drafted", "accepted", "identical", "near ties", "errors")
        table = [heads, *(tuple(map(str, _cells(row))) for row in self.rows())]
        shown = [_line(one) for one in self.divergences[:SHOWN]]
        hidden = len(self.divergences) - len(shown)
        return [
            f"{self._model()}: {len(found.plan.prompts)} prompts, at most {found.plan.tokens} tokens",
            "",
            *("  ".join(f"{cell:>9}" for cell in row) for row in table),
            "",
            f"noise {found.noise:.2g}: log-probabilities of the same tokens differ so much, at most",
            f"near ties are within twice what the {LIKELIEST} likeliest differ by in the texts of one prompt",
            *([self._noisy()] if self.too_noisy else []),
            *(f"ERROR: nothing was drafted with draft_n {way}, so nothing was compared" for way in self.undrafted),
            *(["the drafter did not keep up with the verifier: ask for more --tokens"] if self.undrafted else []),
            *shown,
            *([f"and {hidden} more: see --json"] if hidden else []),
        ]

    def as_json(self) -> Json:
        """Everything but the texts."""
        found = self.found
        return {
            "schema_version": 1,
            "model": self._target,
            "prompts": len(found.plan.prompts),
            "max_tokens": found.plan.tokens,
            "sampling": found.plan.sampling,
            "noise": found.noise,
            "too_noisy": self.too_noisy,
            "failed": self.failed,
            "ways": [dict(zip(_NAMES, _cells(row), strict=True)) for row in self.rows()],
            "undrafted": self.undrafted,
            "divergences": [_told(one) for one in self.divergences],
        }

    def _noisy(self) -> str:
        if promises_bits(self.snapshot):
            return "ERROR: the verifier is reproducible, and yet its log-probabilities differ"
        return f"ERROR: kernels do not differ by more than {TOO_NOISY:g}"

    @property
    def _target(self) -> Json | None:
        """The model whose texts were audited: a drafter knows of it what its verifier has said."""
        told = self.snapshot.get("verifier" if self.snapshot.get("role") == "drafter" else "model")
        return told if isinstance(told, dict) else None

    def _model(self) -> str:
        match self._target:
            case {"name": name, "backend": backend, **more}:
                return f"{name} on {backend}{', reproducible' if more.get('reproducible') else ''}"
            case {"name": name, "model": model}:
                return f"{model} at {name}"
            case _:
                return "unknown model"


def promises_bits(snapshot: Json) -> bool:
    """Whether the verifier of a daemon's /stats is reproducible."""
    model = snapshot.get("model")
    return isinstance(model, dict) and bool(model.get("reproducible"))


_NAMES = ("draft_n", "texts", "tokens", "drafted", "accepted", "identical", "near_ties", "errors")


def _cells(row: Row) -> tuple[int | str, ...]:
    return row.way, row.texts, row.tokens, row.drafted, row.accepted, row.identical, row.near_ties, row.errors


def _line(one: Divergence) -> str:
    where, width = one.parting, "beyond measure" if one.margin is None else f"{one.margin:.2g} at most"
    said = " and ".join("the end" if token is None else str(token) for token in (where.alone, where.drafted))
    return (
        f"{one.verdict}: prompt {one.prompt}, draft_n {one.way}, token {where.position}: {said}, margin {width}, "
        f"near tie up to {BOTH * one.noise:.2g}"
    )


def _told(one: Divergence) -> Json:
    where = one.parting
    return {
        "prompt": one.prompt,
        "draft_n": one.way,
        "position": where.position,
        "alone": where.alone,
        "drafted": where.drafted,
        "margin_at_most": one.margin,
        "near_tie_up_to": BOTH * one.noise,
        "verdict": str(one.verdict),
    }
