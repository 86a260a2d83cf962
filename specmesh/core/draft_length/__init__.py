"""Draft length."""

MAX_DRAFTS = 24  # most drafts of one step
MAX_LEAD = (
    2 * MAX_DRAFTS
)  # most drafts beyond the truth, whatever a verifier asks for: one step's and the next one's
