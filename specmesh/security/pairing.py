"""The exchange of public keys between two machines, by a short code.

A person reads the code on one machine and types it on the other. It never crosses the network:
SPAKE2 makes a strong shared key of it, which encrypts the introductions of both sides. A stranger
can try one code, which ends the wait. Lines over TCP, at most MAX_LINE bytes each:

    drafter   "specmesh pair 1 " and the message of SPAKE2's side A, in hexadecimal
    verifier  the message of side B
    drafter   its introduction, encrypted
    verifier  its own introduction, or "no" if it cannot read the drafter's

The drafter uses the key first, so the verifier counts the try before it answers whether the code
was right. The verifier's first message reveals nothing about the code: a drafter that leaves before
its introduction has not tried one.
"""

import base64
import contextlib
import json
import re
import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

from cryptography.fernet import Fernet, InvalidToken
from spake2 import SPAKE2_A, SPAKE2_B

from specmesh.errors import Busy, Refused, RemoteProtocolError, WrongCode
from specmesh.security.keys import KEY

PORT = 7072
CODE_LIFETIME_S = 300.0
EXCHANGE_TIMEOUT_S = 10.0
MAX_LINE = 4096
MAX_CALLERS = 64  # connections that are served at once

_GREETING = b"specmesh pair 1 "
_SIDES = {"idA": b"specmesh drafter", "idB": b"specmesh verifier"}
_MESSAGE = re.compile(rb"[0-9a-f]{66}")


@dataclass(frozen=True, slots=True)
class PairingIntroduction:
    """The introduction of one side.

    key: its public key.
    port: the port at which a verifier listens for drafters; 0 for a drafter.
    """

    role: str
    key: str
    name: str
    port: int = 0


def new_code() -> str:
    number = secrets.randbelow(10**8)
    return f"{number // 10**4:04}-{number % 10**4:04}"


def wait(
    listener: socket.socket,
    code: str,
    mine: PairingIntroduction,
    admit: Callable[[PairingIntroduction], None],
    lifetime: float = CODE_LIFETIME_S,
) -> PairingIntroduction:
    """Wait as a verifier for the drafter with this code; return its introduction.

    - `admit` is called before the drafter learns that the code was right.
    - All callers are served side by side, so a silent or slow one delays nobody.
    - Only a whole introduction is a try: a caller that leaves earlier has learned nothing about the
      code.

    Raises Refused after a wrong code, Busy if nobody came.
    """
    end = time.monotonic() + lifetime
    callers = _Callers(listener)
    try:
        while (now := time.monotonic()) < end:
            received = callers.next_line(now, end)
            if received is None:
                continue
            caller, line = received
            if caller.box is not None:
                return _introduced(caller.connection, caller.box, line, mine, admit)
            _greeted(caller, line, code, callers)
    finally:
        callers.close()
    reason = "nobody came, and the code is no longer good"
    raise Busy(reason, "run `specmesh pair` again for a new one")


def _greeted(caller: "_Caller", greeting: bytes, code: str, callers: "_Callers") -> None:
    """Answer a drafter's greeting; drop a caller with another one."""
    if not greeting.startswith(_GREETING):
        callers.drop(caller)
        return
    side = SPAKE2_B(_password(code), **_SIDES)
    try:
        message = _message_in(greeting.removeprefix(_GREETING))
        answer = side.start().hex().encode()
        caller.box = _box(side, message)
        caller.connection.sendall(answer + b"\n")
    except (RemoteProtocolError, OSError):
        callers.drop(caller)


def _introduced(
    connection: socket.socket,
    box: Fernet,
    line: bytes,
    mine: PairingIntroduction,
    admit: Callable[[PairingIntroduction], None],
) -> PairingIntroduction:
    """Admit the drafter of an introduction, and answer it.

    Raises Refused if it had another code.
    """
    try:
        theirs = _opened(box, line, "drafter")
    except (WrongCode, RemoteProtocolError) as error:
        if isinstance(error, WrongCode):
            with contextlib.suppress(OSError):
                connection.sendall(b"no\n")
        remedy = "run `specmesh pair` again for a new code"
        raise Refused(f"nobody was let in: {error}", remedy) from None
    admit(theirs)
    with contextlib.suppress(OSError):  # it has left, but it is let in, and the code is spent
        connection.sendall(_sealed(box, mine) + b"\n")
    return theirs


@dataclass(slots=True, eq=False, kw_only=True)
class _Caller:
    """A connection at the pairing port.

    end: time of the monotonic clock at which it is closed.
    kept: bytes of a line that is not complete.
    box: encrypts introductions, once the greeting is answered.
    """

    connection: socket.socket
    host: str
    end: float
    kept: bytes = b""
    box: Fernet | None = None


class _Callers:
    """The connections at a listener, at most MAX_CALLERS, each for EXCHANGE_TIMEOUT_S.

    - Beyond MAX_CALLERS the host with the most connections loses its oldest one.
    - Lines of the host that was read least come first: computing an answer takes milliseconds.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._there: list[_Caller] = []
        self._read = Counter[str]()  # lines by host
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def next_line(self, now: float, until: float) -> tuple[_Caller, bytes] | None:
        """Wait for bytes, at most until then; return a whole line and its caller."""
        due = until
        for caller in list(self._there):
            if caller.end <= now:
                self.drop(caller)
            else:
                due = min(due, caller.end)
        callers = list[_Caller]()
        for key, _ in self._selector.select(max(due - now, 0.0)):
            if isinstance(key.data, _Caller):
                callers.append(key.data)
            else:
                self._accept()
        for caller in sorted(callers, key=lambda caller: self._read[caller.host]):
            line = self._line_of(caller)
            if line is not None:
                self._read[caller.host] += 1
                return caller, line
        return None

    def drop(self, caller: _Caller) -> None:
        """Close a connection; one that was dropped before stays so."""
        if caller in self._there:
            self._there.remove(caller)
            self._selector.unregister(caller.connection)
            caller.connection.close()

    def close(self) -> None:
        for caller in list(self._there):
            self.drop(caller)
        self._selector.close()

    def _accept(self) -> None:
        for _ in range(MAX_CALLERS):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it left again, or there is no descriptor for it
                self._make_room(most=len(self._there) - 1)
                return
            connection.setblocking(False)
            end = time.monotonic() + EXCHANGE_TIMEOUT_S
            caller = _Caller(connection=connection, host=str(address[0]), end=end)
            self._there.append(caller)
            self._selector.register(connection, selectors.EVENT_READ, caller)
            self._make_room(most=MAX_CALLERS)

    def _make_room(self, most: int) -> None:
        if len(self._there) <= max(most, 0):
            return
        [(crowded, _)] = Counter(caller.host for caller in self._there).most_common(1)
        for caller in self._there:
            if caller.host == crowded:
                self.drop(caller)
                return

    def _line_of(self, caller: _Caller) -> bytes | None:
        """Return the line that a caller has completed, if any.

        Drop a caller that has left, or sends no lines.
        """
        if caller not in self._there:
            return None
        try:
            more = caller.connection.recv(MAX_LINE)
        except BlockingIOError:
            return None
        except OSError:
            more = b""
        line, end, rest = (caller.kept + more).partition(b"\n")
        if end:
            caller.kept = rest
            return line
        caller.kept = line
        if not more or len(line) > MAX_LINE:
            self.drop(caller)
        return None


def ask(connection: socket.socket, code: str, mine: PairingIntroduction) -> PairingIntroduction:
    """Introduce a drafter to the verifier; return the verifier's introduction.

    Raises WrongCode, RemoteProtocolError if another program answers, OSError if it left.
    """
    lines = LineChannel(connection)
    side = SPAKE2_A(_password(code), **_SIDES)
    lines.write(_GREETING + side.start().hex().encode())
    box = _box(side, _message_in(lines.read()))
    lines.write(_sealed(box, mine))
    return _opened(box, lines.read(), "verifier")


def _password(code: str) -> bytes:
    return re.sub(r"[\s-]", "", code).encode()


def _message_in(line: bytes) -> bytes:
    """Return SPAKE2's message from its line in hexadecimal. Raises RemoteProtocolError."""
    if not _MESSAGE.fullmatch(line):
        raise RemoteProtocolError("what answers there is no `specmesh pair`")
    return bytes.fromhex(line.decode())


def _box(side: "SPAKE2_A | SPAKE2_B", message: bytes) -> Fernet:
    """Return the encryption of both sides.

    Raises RemoteProtocolError for a message that is no point of SPAKE2's curve.
    """
    try:
        key = side.finish(message)
    except Exception as error:  # noqa: BLE001 - the library has many errors for that
        reason = f"the other side breaks the exchange ({type(error).__name__})"
        raise RemoteProtocolError(reason) from None
    return Fernet(base64.urlsafe_b64encode(key))


def _sealed(box: Fernet, mine: PairingIntroduction) -> bytes:
    return box.encrypt(json.dumps(asdict(mine)).encode())


def _opened(box: Fernet, line: bytes, role: str) -> PairingIntroduction:
    try:
        answered: object = json.loads(box.decrypt(line))
    except (InvalidToken, ValueError):
        raise WrongCode("the code was another one") from None
    match answered:
        case {"role": str(claimed), "key": str(key), "name": str(name), "port": int(port)} if (
            claimed == role and KEY.fullmatch(key) and 0 <= port < 2**16
        ):
            # A list can hold this name, and a terminal show it.
            word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
            return PairingIntroduction(role, key, word[:64] or role, port)
        case _:
            raise RemoteProtocolError(f"the other side does not introduce itself as a {role}")


class LineChannel:
    """Lines over a connection, all of them together within EXCHANGE_TIMEOUT_S.

    Raises OSError, RemoteProtocolError.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = time.monotonic() + EXCHANGE_TIMEOUT_S
        self._kept = b""

    def write(self, line: bytes) -> None:
        self._arm()
        self._connection.sendall(line + b"\n")

    def read(self) -> bytes:
        while b"\n" not in self._kept:
            self._arm()
            more = self._connection.recv(MAX_LINE)
            if not more:
                raise ConnectionResetError("the other side has left")
            self._kept += more
            if len(self._kept) > MAX_LINE:
                raise RemoteProtocolError("something came that is no line of ours")
        line, _, self._kept = self._kept.partition(b"\n")
        return line

    def _arm(self) -> None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side takes too long")
        self._connection.settimeout(left)
