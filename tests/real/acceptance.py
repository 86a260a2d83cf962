"""How many of the drafts for real texts the target accepts."""

from processes import complete, until


def drafted_texts(daemon, requests, least):
    """Return these completions, asked for again until at least so many drafts have been verified.
    On a busy machine a drafter may come too late for a whole text."""
    streams = []

    def ask():
        streams.extend(complete(daemon, request) for request in requests)
        return _sum(streams, "drafted") >= least

    until(ask, f"{least} drafts are verified")
    return streams


def acceptance(streams):
    """Return accepted drafts per verified one."""
    return _sum(streams, "accepted") / _sum(streams, "drafted")


def _sum(streams, count):
    return sum(stream.result["report"][count] for stream in streams)
