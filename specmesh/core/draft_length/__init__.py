"""Draft length: how many drafts a step takes, and how many a drafter is asked for."""

MAX_DRAFTS = 24  # most drafts of one step
MAX_COPIED = 127
"""Most drafts of a step that one session has to itself, if they repeat known text: 128 rows.

They are nearly always right, and rows cost less the more there are. On an H100 32 rows of a 70B
model took 1.1 times as long as 17. On a CPU, after 1,000 ids, 64 rows took 0.71 of the time of 56,
as llama.cpp reads the context for them together. Six edits there were 1.2 times as fast as with 48
(bench/edits.py, padded F16).
"""
MAX_LEAD = 2 * MAX_DRAFTS  # most drafts beyond the truth: one step's and the next one's
MAX_SAMPLES = 31  # newest measurements of a kind that count
