"""The names of the sources of drafts, as requests, statistics and the wire have them."""

REMOTE = "remote"
"""The drafts of drafter daemons."""

PREDICTION = "prediction"
"""The drafts that a client has predicted."""

DRAFT_SOURCES = ("grammar", PREDICTION, REMOTE, "suffix", "mtp", "local")
"""All there are. A verifier has "mtp" or "local", or neither; `verifier/sources` has the others."""
