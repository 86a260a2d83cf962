"""Names of hosts, looked up on threads of their own.

A resolver that hangs holds up nothing, not even the end of the process.
"""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from specmesh.core.host_numbers import LOCALHOST
from specmesh.errors import ConfigError, NotThereYet
from specmesh.security.addresses import means_everywhere

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The numbers of a host, the best first.

    trouble: why there are none.
    """

    host: str
    numbers: tuple[str, ...]
    trouble: str = ""


class NameLookups:
    """Look-ups, at most one for each host at a time."""

    def __init__(self, deliver: Callable[[LookedUp], object]) -> None:
        """Begin without look-ups.

        deliver: called with each answer, on the thread of its look-up. It must not block.
        """
        self._deliver = deliver
        self._running = set[str]()

    def begin(self, host: str) -> None:
        """Look a host up, unless that is being done."""
        if host in self._running:
            return
        self._running.add(host)
        try:
            on_thread(lambda: self._found(look_up(host)))
        except RuntimeError as error:  # there are too many threads
            self._found(LookedUp(host, (), str(error)))

    def _found(self, found: LookedUp) -> None:
        self._running.discard(found.host)
        self._deliver(found)


def look_up(host: str) -> LookedUp:
    """Ask the system's resolver for a host's numbers; this may take for ever."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return LookedUp(host, (), error.strerror or str(error))
    except UnicodeError as error:
        return LookedUp(host, (), str(error))
    numbers = [_written(entry[4]) for entry in found]
    return LookedUp(host, tuple(dict.fromkeys(numbers)))


def _written(address: tuple[object, ...]) -> str:
    """Return the number in a socket's address, with its zone if it needs one."""
    number = str(address[0])
    if len(address) == 4 and address[3]:  # IPv6: number, port, flow, zone
        return f"{number}%{address[3]}"
    return number


def numbers_here(
    host: str, option: str, *, interfaces: bool = False, everywhere: bool = False
) -> tuple[str, ...]:
    """Return the numbers to listen at for a host; this may take for ever.

    An interface is returned as it is, if that is allowed.
    Raise NotThereYet for a name without numbers, ConfigError for an interface or for a name of
    every network, unless these are allowed.
    """
    if host == "localhost":
        return LOCALHOST
    if host in [name for _, name in socket.if_nameindex()]:
        if not interfaces:
            raise ConfigError(f"{option}: {host} is an interface", "name one of its addresses")
        return (host,)
    found = look_up(host)
    if not found.numbers:
        reason = f"{option}: nothing here is called {host} ({found.trouble})"
        raise NotThereYet(reason, "name an address of this machine")
    if not everywhere and any(map(means_everywhere, found.numbers)):
        raise ConfigError(f"{option}: {host} means every network", "name the one to listen on")
    return found.numbers


def on_thread(work: Callable[[], T]) -> "Future[T]":
    """Have `work` done on a thread that does not keep the process from ending."""
    done: Future[T] = Future()

    def settle() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  (the future raises it)
            done.set_exception(error)

    threading.Thread(target=settle, name="names", daemon=True).start()
    return done
