"""Two machines learn each other's public keys, by a short code that a person reads on one and types on the other.

The code never crosses the network: SPAKE2 makes a strong shared key of it, which encrypts what each side says of
itself. Who does not know the code can try one, which ends the wait. Lines over TCP, at most MAX_LINE bytes each:

drafter   "specmesh pair 1 " and the message of SPAKE2's side A, in hexadecimal
verifier  the message of side B
drafter   its introduction, encrypted
verifier  its own, or "no" if the drafter's cannot be read

The drafter uses the key first, so the verifier knows of the try before it says whether the code was right.
"""

import base64
import contextlib
import json
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from cryptography.fernet import Fernet, InvalidToken
from spake2 import SPAKE2_A, SPAKE2_B

from specmesh.errors import Busy, Refused, RemoteProtocolError, WrongCode
from specmesh.security.keys import KEY

PORT = 7072
CODE_LIFETIME_S = 300.0
EXCHANGE_TIMEOUT_S = 10.0  # nobody else is heard meanwhile
MAX_LINE = 4096

_GREETING = b"specmesh pair 1 "
_SIDES = {"idA": b"specmesh drafter", "idB": b"specmesh verifier"}
_MESSAGE = re.compile(rb"[0-9a-f]{66}")


@dataclass(frozen=True, slots=True)
class PairingIntroduction:
    """What a side says of itself. key: its public one. port: where a verifier listens for drafters; 0 of a drafter."""

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
    """Wait as a verifier for the drafter with this code; `admit` it before it learns that the code was right. Raise
    Refused after a wrong code, Busy if nobody came."""
    end = time.monotonic() + lifetime
    while (left := end - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            break
        except OSError:
            continue  # it left before it was heard
        with connection:
            lines = LineChannel(connection)
            try:
                return offer(lines, code, mine, admit)
            except (WrongCode, RemoteProtocolError, OSError) as error:
                if lines.answered:  # something that a guess could be tried on
                    raise Refused(
                        f"nobody was let in: {error}", "run `specmesh pair` again for a new code"
                    ) from None
    raise Busy(
        "nobody came, and the code is no longer good", "run `specmesh pair` again for a new one"
    )


def offer(
    lines: "LineChannel",
    code: str,
    mine: PairingIntroduction,
    admit: Callable[[PairingIntroduction], None],
) -> PairingIntroduction:
    greeting = lines.read()
    if not greeting.startswith(_GREETING):
        raise RemoteProtocolError("something came that is no drafter of this version")
    side = SPAKE2_B(_password(code), **_SIDES)
    message = side.start()
    box = _box(side, greeting.removeprefix(_GREETING))
    lines.write(message.hex().encode())
    try:
        theirs = _opened(box, lines.read(), "drafter")
    except WrongCode:
        lines.write(b"no")
        raise
    admit(theirs)
    with contextlib.suppress(OSError):  # it has left, but it is let in, and the code is spent
        lines.write(_sealed(box, mine))
    return theirs


def ask(connection: socket.socket, code: str, mine: PairingIntroduction) -> PairingIntroduction:
    """The drafter's side; raises WrongCode, RemoteProtocolError where something else answers, OSError where it left."""
    lines = LineChannel(connection)
    side = SPAKE2_A(_password(code), **_SIDES)
    lines.write(_GREETING + side.start().hex().encode())
    box = _box(side, lines.read())
    lines.write(_sealed(box, mine))
    return _opened(box, lines.read(), "verifier")


def _password(code: str) -> bytes:
    return re.sub(r"[\s-]", "", code).encode()


def _box(side: "SPAKE2_A | SPAKE2_B", message: bytes) -> Fernet:
    """What only both sides can open."""
    if not _MESSAGE.fullmatch(message):
        raise RemoteProtocolError("what answers there is no `specmesh pair`")
    try:
        key = side.finish(bytes.fromhex(message.decode()))
    except Exception as error:  # noqa: BLE001  (the library has many for what is no point of its curve)
        raise RemoteProtocolError(
            f"the other side breaks the exchange ({type(error).__name__})"
        ) from None
    return Fernet(base64.urlsafe_b64encode(key))


def _sealed(box: Fernet, mine: PairingIntroduction) -> bytes:
    return box.encrypt(json.dumps(asdict(mine)).encode())


def _opened(box: Fernet, line: bytes, role: str) -> PairingIntroduction:
    try:
        answered: object = json.loads(box.decrypt(line))
    except (InvalidToken, ValueError):
        raise WrongCode("the code was another one") from None
    match answered:
        case {"role": str(said), "key": str(key), "name": str(name), "port": int(port)} if (
            said == role and KEY.fullmatch(key) and 0 <= port < 2**16
        ):
            word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[
                :64
            ]  # a list can hold it, a terminal show it
            return PairingIntroduction(said, key, word or role, port)
        case _:
            raise RemoteProtocolError(f"the other side does not introduce itself as a {role}")


class LineChannel:
    """Lines over a connection, all of them together within EXCHANGE_TIMEOUT_S; raises OSError, RemoteProtocolError."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = time.monotonic() + EXCHANGE_TIMEOUT_S
        self._kept = b""
        self.answered = False

    def write(self, line: bytes) -> None:
        self._arm()
        self.answered = True
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
