"""Draft length: how many drafts a step takes, and how many a drafter is asked for."""

MAX_DRAFTS = 24  # most drafts of one step
MAX_LEAD = 2 * MAX_DRAFTS  # most drafts beyond the truth: one step's and the next one's
MAX_SAMPLES = 31  # newest measurements of a kind that count
