"""The exchange of keys by a code: who knows it is let in, once; nobody else learns or changes anything."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from spake2 import SPAKE2_A

from specmesh.errors import Busy, Refused, RemoteProtocolError, SpecmeshError, WrongCode
from specmesh.security.pairing import MAX_CALLERS, PairingIntroduction, ask, wait

CODE, WRONG = "0123-4567", "0123-4568"
BOX = PairingIntroduction("verifier", "ab" * 32, "bigbox", 7071)
MAC = PairingIntroduction("drafter", "cd" * 32, "mac")
OTHERS = ThreadPoolExecutor()


class Verifier:
    """One that waits, on a thread of its own; `end` is what came of it."""

    def __init__(self, lifetime: float = 60.0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.admitted: list[PairingIntroduction] = []
        self._came = OTHERS.submit(self._wait, lifetime)

    def _wait(self, lifetime: float) -> PairingIntroduction:
        with self._listener:
            return wait(self._listener, CODE, BOX, self.admitted.append, lifetime)

    def end(self) -> PairingIntroduction | BaseException | None:
        error = self._came.exception(30)
        return self._came.result() if error is None else error

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 10)

    def ask(self, code: str, mine: PairingIntroduction = MAC) -> PairingIntroduction:
        with self.connect() as connection:
            return ask(connection, code, mine)

    def close(self) -> None:
        while not self._came.done():
            with suppress(OSError, SpecmeshError):
                self.ask(WRONG)


@pytest.fixture
def verifier() -> Iterator[Verifier]:
    made = Verifier()
    yield made
    made.close()


@pytest.mark.parametrize("typed", [CODE, "01234567", " 0123 4567 "])
def test_the_right_code_is_good_once(verifier: Verifier, typed: str):
    assert verifier.ask(typed) == BOX
    assert verifier.end() == MAC
    assert verifier.admitted == [MAC]
    with pytest.raises(OSError, match=r".*"):  # it is good once
        verifier.ask(CODE)


def test_a_wrong_code_ends_it(verifier: Verifier):
    with pytest.raises(WrongCode):
        verifier.ask(WRONG)
    told = "nobody was let in: the code was another one: run `specmesh pair` again for a new code"
    assert str(verifier.end()) == told
    assert verifier.admitted == []
    with pytest.raises(OSError, match=r".*"):
        verifier.ask(CODE)


GREETING = b"specmesh pair 1 " + SPAKE2_A(b"01234567").start().hex().encode() + b"\n"


def test_who_leaves_before_its_introduction_has_tried_nothing(verifier: Verifier):
    """The verifier's message alone proves no guess: only an introduction is one."""
    with verifier.connect() as connection:
        connection.sendall(GREETING)
        assert connection.recv(1)
    assert verifier.ask(CODE) == BOX


@pytest.mark.parametrize(
    "said",
    [b"", b"specmesh", b"\0" * 4000, GREETING],
    ids=["nothing", "a part", "no line", "a greeting"],
)
@pytest.mark.parametrize("count", [1, MAX_CALLERS + 10])
def test_silent_callers_delay_nobody(verifier: Verifier, said: bytes, count: int):
    """They keep their connections open, and say no more: no time-out of theirs is waited for."""
    with ExitStack() as callers:
        for _ in range(count):
            connection = callers.enter_context(verifier.connect())
            connection.sendall(said)
        assert verifier.ask(CODE) == BOX


def test_bytes_that_come_one_by_one_delay_nobody(verifier: Verifier):
    with verifier.connect() as slow:
        for byte in GREETING[:20]:
            slow.sendall(bytes([byte]))
        assert verifier.ask(CODE) == BOX


def test_a_slow_right_code_is_let_in(verifier: Verifier):
    """One line may come in as many parts as it likes, while others come and go."""
    side = SPAKE2_A(b"01234567", idA=b"specmesh drafter", idB=b"specmesh verifier")
    with verifier.connect() as slow, verifier.connect():
        for byte in b"specmesh pair 1 " + side.start().hex().encode() + b"\n":
            slow.sendall(bytes([byte]))
        assert len(slow.makefile("rb").readline()) == 67


def test_a_wrong_code_beside_silent_callers_ends_it(verifier: Verifier):
    with verifier.connect(), verifier.connect() as greeted:
        greeted.sendall(GREETING)
        with pytest.raises(WrongCode):
            verifier.ask(WRONG)
    assert isinstance(verifier.end(), Refused)


def test_a_code_ages():
    assert isinstance(Verifier(lifetime=0.05).end(), Busy)


STRANGERS = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\nHost: bigbox\r\n\r\n",
    b"specmesh pair 2 " + b"41" * 33 + b"\n",
    b"x" * 100_000,
]
NO_POINTS = [
    b"",
    b"zz" * 33,
    b"41" + b"00" * 32,
    b"4101" + b"00" * 31,
    b"41" + b"ff" * 32,
    b"42" + b"11" * 32,
]


@pytest.mark.parametrize(
    "said", [*STRANGERS, *(b"specmesh pair 1 " + point + b"\n" for point in NO_POINTS)]
)
def test_strangers_end_nothing(verifier: Verifier, said: bytes):
    with verifier.connect() as connection, suppress(OSError):
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert verifier.ask(CODE) == BOX


def lines_between(
    verifier: Verifier, change: Callable[[int, bytes], bytes]
) -> tuple[list[bytes], object]:
    """An exchange through somebody in the middle, who reads every line, and may change it; what the drafter got."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as middle:

        def carry() -> None:
            here, _ = middle.accept()
            with (
                here,
                verifier.connect() as there,
                here.makefile("rb") as left,
                there.makefile("rb") as right,
            ):
                for number in range(4):
                    source, sink = (left, there) if number % 2 == 0 else (right, here)
                    seen.append(source.readline())
                    if not seen[-1]:
                        return
                    sink.sendall(change(number, seen[-1]))

        carried = OTHERS.submit(carry)
        with socket.create_connection(middle.getsockname(), 10) as connection:
            try:
                got: object = ask(connection, CODE, MAC)
            except (SpecmeshError, OSError) as error:
                got = error
        carried.result(10)
    return seen, got


def test_what_a_listener_sees(verifier: Verifier):
    seen, got = lines_between(verifier, lambda _, line: line)
    assert got == BOX
    whole = b"".join(seen)
    for secret in (b"01234567", CODE.encode(), BOX.key.encode(), MAC.key.encode(), b"bigbox"):
        assert secret not in whole


@pytest.mark.parametrize("number", range(4))
def test_a_changed_line_pairs_nobody_wrongly(verifier: Verifier, number: int):
    """A line that somebody in the middle has changed: the drafter takes nobody for the verifier, and the other way."""

    def change(at: int, line: bytes) -> bytes:
        place = len(line) // 2
        other = b"a" if line[place : place + 1] != b"a" else b"b"
        return line[:place] + other + line[place + 1 :] if at == number else line

    _, got = lines_between(verifier, change)
    assert isinstance(got, SpecmeshError | OSError)
    assert verifier.admitted in ([], [MAC])
    assert verifier.admitted == ([MAC] if number == 3 else [])


def test_our_own_words_are_no_answer():
    with socket.create_server(("127.0.0.1", 0)) as mirror:

        def reflect() -> None:
            connection, _ = mirror.accept()
            with connection:
                connection.sendall(connection.recv(4096).removeprefix(b"specmesh pair 1 "))
                connection.recv(4096)

        reflected = OTHERS.submit(reflect)
        with (
            socket.create_connection(mirror.getsockname(), 10) as connection,
            pytest.raises(RemoteProtocolError),
        ):
            ask(connection, CODE, MAC)
        reflected.result(10)


@pytest.mark.parametrize(
    "mine",
    [
        PairingIntroduction("verifier", "cd" * 32, "mac"),
        PairingIntroduction("drafter", "cd" * 31, "mac"),
        PairingIntroduction("drafter", "CD" * 32, "mac"),
        PairingIntroduction("drafter", "cd" * 32, "mac", 70000),
    ],
)
def test_introductions_are_checked(verifier: Verifier, mine: PairingIntroduction):
    with pytest.raises((RemoteProtocolError, OSError)):
        verifier.ask(CODE, mine)
    assert verifier.admitted == []


@pytest.mark.parametrize(
    ("said", "kept"), [("Ann's Mac\x1b[2J", "Ann-s-Mac-2J"), ("", "drafter"), ("x" * 99, "x" * 64)]
)
def test_names_are_made_harmless(verifier: Verifier, said: str, kept: str):
    verifier.ask(CODE, PairingIntroduction("drafter", "cd" * 32, said))
    assert verifier.admitted == [PairingIntroduction("drafter", "cd" * 32, kept)]
