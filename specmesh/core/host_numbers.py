"""The numbers behind the name of a verifier's host.

Decided here: when a look-up is due, and which number is tried.

A look-up may take seconds or never end, and tomorrow's answer may be another. So one runs at a
time, the last good answer holds until a better one comes, and a new answer counts once the verifier
is away.
"""

from ipaddress import ip_address

LOOK_UP_INTERVAL = 2.0  # seconds from an answer to the next look-up, while the verifier is away
TRY_SECONDS = 3.0  # seconds that a verifier has to answer at one number, where its host has more
LOCALHOST = ("127.0.0.1", "::1")  # whatever a resolver makes of it


class HostNumbers:
    """The numbers of `host`, and the one that is tried.

    A host that is a number, or this one, is never looked up.

    number: the one that is tried; None while none is known.
    trouble: why the newest look-up gave none; empty if it gave some.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._numbers = LOCALHOST if host == "localhost" else _literal(host)
        self._fixed = bool(self._numbers)
        self.number = self._numbers[0] if self._fixed else None
        self.trouble = ""
        self._asking = False
        self._next_look_up = float("-inf")
        self._tried_since: float | None = None

    def due(self, now: float, *, there: bool) -> bool:
        """Return True if a look-up begins now; `answered` or `failed` follows.

        there: the verifier is attached.
        """
        if there:
            self._next_look_up = now  # once it is lost
        if self._fixed or there or self._asking or now < self._next_look_up:
            return False
        self._asking = True
        return True

    def answered(self, numbers: tuple[str, ...], now: float) -> None:
        """Take the answer of a look-up.

        Its order counts only if it has other numbers than before.
        """
        self._asked(now, "")
        if set(numbers) != set(self._numbers):
            self._numbers = numbers

    def failed(self, why: str, now: float) -> None:
        """Note that a look-up gave nothing: the last good answer holds."""
        self._asked(now, why)

    def moves(self, now: float, *, there: bool) -> bool:
        """Move to the next number if it is due; return True if `number` has changed.

        It is due while the verifier is away, if the number before gave no answer for TRY_SECONDS or
        is no longer one of the host's.

        there: the verifier is attached.
        """
        if there or self._tried_since is None:
            self._tried_since = now
        if there or not self._numbers:
            return False
        before = self.number
        if before not in self._numbers:
            self.number = self._numbers[0]
        elif now - self._tried_since >= TRY_SECONDS:
            following = self._numbers.index(before) + 1
            self.number = self._numbers[following % len(self._numbers)]
        if self.number == before:
            return False
        self._tried_since = now
        return True

    def _asked(self, now: float, trouble: str) -> None:
        """Note the end of a look-up; the next one is due after an interval, whatever came of it."""
        self._asking = False
        self._next_look_up = now + LOOK_UP_INTERVAL
        self.trouble = trouble


def _literal(host: str) -> tuple[str, ...]:
    """Return a host that is a number as the only one; none for a name."""
    try:
        ip_address(host)
    except ValueError:
        return ()
    return (host,)
