"""Why nothing is drafted for a session: one word for stats, reports, logs and the wire."""

from enum import StrEnum


class NoDrafts(StrEnum):
    """A reason. docs/troubleshooting.md has the remedy of each."""

    CLIENT = "client asked for none"  # draft_n 0, the strategy greedy, or none of the sources here
    NONE_ATTACHED = "none attached"  # no drafter is there, or not the one whose client asked
    VOCABULARY = "vocabulary"  # the drafters' models have another
    CONTEXT = "context"  # the text is longer than any drafter can hold
    GRAMMAR = "grammar"  # it used up its time, and no draft can be checked against it any more
    GATE = "gate"  # drafts would cost more than they save, or it is being measured whether they do
    FAULT = "fault"  # too many errors of a vLLM server's proposer, whose log has them
    BEHIND = "drafter behind"  # drafts are asked for, and do not come in time


LASTING = (
    NoDrafts.NONE_ATTACHED,
    NoDrafts.VOCABULARY,
    NoDrafts.CONTEXT,
    NoDrafts.GRAMMAR,
    NoDrafts.FAULT,
)
"""Reasons that hold until somebody changes something; the others come and go while a text is
generated."""
