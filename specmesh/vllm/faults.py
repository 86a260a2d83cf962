"""Unexpected errors of the proposer: single ones are survived, many of them end drafting.

An error may be of one text, and be over with it. So all texts are begun anew after an error. One
that comes back again and again would cost every step something, and its log too. Then nothing is
drafted any more, until the server is started anew.
"""

MOST_FAULTS = 5
"""Errors, without GOOD_CALLS between two of them, after which nothing is drafted."""
GOOD_CALLS = 100
"""Calls in a row without an error, after which the errors before count no more."""


class Faults:
    """The errors that count.

    off: there were so many that nothing is to be drafted any more.
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
