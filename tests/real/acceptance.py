"""How many of the drafts for real texts the target accepts."""

from collections.abc import Sequence

from processes import Daemon, Json, complete, until


def acceptance(daemon: Daemon, requests: Sequence[Json], least: int) -> float:
    """Return accepted drafts per verified one, over these completions. They are asked for until at least so many drafts
    have been verified: on a busy machine a drafter may come too late for a whole text."""
    drafted = accepted = 0

    def ask() -> bool:
        nonlocal drafted, accepted
        for request in requests:
            report = complete(daemon, request).result["report"]
            drafted += report["drafted"]
            accepted += report["accepted"]
        return drafted >= least

    until(ask, f"{least} drafts are verified")
    return accepted / drafted
