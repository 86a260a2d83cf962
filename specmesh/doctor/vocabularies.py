"""Whether two models' vocabularies fit, offline, with the comparison a drafter makes."""

from dataclasses import dataclass
from pathlib import Path

from specmesh.core.vocabulary.match import (
    PROBES,
    EncodingMatch,
    MatchKind,
    VocabularyMatch,
    compare,
    compare_encodings,
    percent,
)
from specmesh.engines.hf_vocabulary import TokenizerFile
from specmesh.engines.load import load_tokenizer

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found; `probed` is None where one side's encoder could not be run."""

    model: Path
    against: Path
    comparison: VocabularyMatch
    probed: EncodingMatch | None

    @property
    def usable(self) -> bool:
        """Whether a drafter with `model` would run for a verifier with `against`."""
        return self.comparison.verdict is not MatchKind.DIFFERENT

    def lines(self) -> list[str]:
        """For people."""
        found = self.comparison
        lines = [f"drafter   {self.model}", f"verifier  {self.against}", f"verdict   {found.verdict}: {found}"]
        if self.probed is None:
            lines.append("encoders  not compared: install the tokenizers package for Hugging Face directories")
        else:
            alike = f"{self.probed.agreed} of {self.probed.compared} texts are cut alike"
            lines.append(f"encoders  {alike}{'; ' if self.probed.first else ''}{self.probed.first}")
        lines.append(f"result    {self._result()}")
        return lines

    def _result(self) -> str:
        if not self.usable:
            return "this drafter would be refused: take a model of the same family"
        if self.probed is not None and self.probed.agreed < self.probed.compared:
            return "these can work together; texts are cut differently, so fewer drafts will be accepted"
        if self.comparison.verdict is MatchKind.PARTIAL:
            share = percent(1 - self.comparison.overlap)
            return f"these can work together; drafts end where one of the {share} without a counterpart would be next"
        return "these can work together"

    def as_json(self) -> dict[str, object]:
        """For programs."""
        found, probed = self.comparison, self.probed
        return {
            "schema_version": SCHEMA_VERSION,
            "model": str(self.model),
            "against": str(self.against),
            "verdict": str(found.verdict),
            "usable": self.usable,
            "meaning": str(found),
            "model_tokens": found.n_draft,
            "against_tokens": found.n_verifier,
            "overlap": found.overlap,
            "min_overlap": found.least,
            "moved": found.moved,
            "only_model": found.only_draft,
            "only_against": found.only_verifier,
            "differences": [{"id": d.id, "model": d.draft, "against": d.verifier} for d in found.differences],
            "encoders": None
            if probed is None
            else {"alike": probed.agreed, "compared": probed.compared, "first": probed.first or None},
        }


def diagnose(model: Path, against: Path, least: float) -> Diagnosis:
    """Compare two GGUF files or Hugging Face directories; raises ConfigError where one cannot be read."""
    draft, verifier = load_tokenizer(model), load_tokenizer(against)
    found = compare(draft.vocabulary, verifier.vocabulary, least)
    return Diagnosis(model, against, found, _probe(draft, verifier))


def _probe(draft: TokenizerFile, verifier: TokenizerFile) -> EncodingMatch | None:
    mine, theirs = draft.encode, verifier.encode
    if mine is None or theirs is None:
        return None
    encodings = [(text, mine(text), theirs(text)) for text in PROBES]
    return compare_encodings(draft.vocabulary, verifier.vocabulary, encodings)
