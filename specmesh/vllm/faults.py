"""Unexpected errors of the proposer: single ones are survived, many of them end drafting.

An error may come from a single text and end with it. So after an error all texts are begun anew. An
error that comes again and again would slow down every step and fill the log. So after too many
errors nothing is drafted until the server is restarted.
"""

MOST_FAULTS = 5
"""Errors that count, after which nothing is drafted."""
GOOD_CALLS = 100
"""Calls in a row without an error, after which the errors before them count no more."""


class Faults:
    """The errors that count.

    off: there were too many, so nothing is to be drafted any more.
    """

    def __init__(self) -> None:
        """Begin without errors."""
        self.off = False
        self._count = 0
        self._good_calls = 0  # since the newest error

    def came(self) -> None:
        """Note an error."""
        self._count += 1
        self._good_calls = 0
        self.off = self.off or self._count >= MOST_FAULTS

    def answered(self) -> None:
        """Note a call without an error."""
        if not self._count:
            return
        self._good_calls += 1
        if self._good_calls >= GOOD_CALLS:
            self._count = 0
