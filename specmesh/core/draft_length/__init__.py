"""Draft length."""

MAX_DRAFTS = 24  # most drafts of one step
