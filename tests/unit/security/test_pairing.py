"""The exchange of keys by a code: the right code lets a drafter in, once."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from spake2 import SPAKE2_A

from specmesh.errors import Busy, RemoteProtocolError, SpecmeshError, WrongCode
from specmesh.security.pairing import MAX_CALLERS, PairingIntroduction, ask, wait

CODE = "0123-4567"
WRONG = "0123-4568"
BOX = PairingIntroduction("verifier", "ab" * 32, "bigbox", 7071)
MAC = PairingIntroduction("drafter", "cd" * 32, "mac")
OTHERS = ThreadPoolExecutor()


def listen():
    return socket.create_server(("127.0.0.1", 0))


class Verifier:
    """One that waits on a thread of its own. admitted: the drafters that it let in."""

    def __init__(self, lifetime=60.0):
        self._listener = listen()
        self.address = self._listener.getsockname()
        self.admitted = []
        self._result = OTHERS.submit(self._wait, lifetime)

    def _wait(self, lifetime):
        with self._listener:
            return wait(self._listener, CODE, BOX, self.admitted.append, lifetime)

    def result(self):
        """Return the drafter, or the error that ended the wait."""
        return self._result.exception(30) or self._result.result()

    def connect(self):
        return socket.create_connection(self.address, 10)

    def ask(self, code=CODE, drafter=MAC):
        with self.connect() as connection:
            return ask(connection, code, drafter)

    def close(self):
        while not self._result.done():
            with suppress(OSError, SpecmeshError):
                self.ask(WRONG)


@pytest.fixture
def verifier():
    made = Verifier()
    yield made
    made.close()


def refuses_the_right_code(verifier):
    with pytest.raises(OSError, match=r".*"):
        verifier.ask(CODE)
    return True


@pytest.mark.parametrize("typed", [CODE, "01234567", " 0123 4567 "])
def test_the_right_code_is_good_once(verifier, typed):
    assert verifier.ask(typed) == BOX
    assert verifier.result() == MAC
    assert verifier.admitted == [MAC]
    assert refuses_the_right_code(verifier)


def test_a_wrong_code_ends_it(verifier):
    with pytest.raises(WrongCode):
        verifier.ask(WRONG)
    refused = "nobody was let in: the code was another one"
    assert str(verifier.result()) == f"{refused}: run `specmesh pair` again for a new code"
    assert verifier.admitted == []
    assert refuses_the_right_code(verifier)


def test_a_code_ages():
    assert isinstance(Verifier(lifetime=0.05).result(), Busy)


# --- callers that say little


def greeting(**names):
    """Return the first line of a drafter that knows the code."""
    message = SPAKE2_A(b"01234567", **names).start()
    return b"specmesh pair 1 " + message.hex().encode() + b"\n"


def test_a_caller_that_leaves_before_its_introduction_has_tried_nothing(verifier):
    """The verifier's message by itself proves no guess."""
    with verifier.connect() as connection:
        connection.sendall(greeting())
        assert connection.recv(1)
    assert verifier.ask() == BOX


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(greeting()[:20], id="a part"),
        pytest.param(b"\0" * 4000, id="no line"),
        pytest.param(greeting(), id="a greeting"),
    ],
)
@pytest.mark.parametrize("count", [1, MAX_CALLERS + 10])
def test_silent_callers_delay_nobody(verifier, data, count):
    """No time-out of theirs is waited for, although they keep their connections open."""
    with ExitStack() as callers:
        for _ in range(count):
            callers.enter_context(verifier.connect()).sendall(data)
        assert verifier.ask() == BOX


def test_a_slow_right_code_is_let_in(verifier):
    """A line may come in any number of parts, while others come and go."""
    with verifier.connect() as slow, verifier.connect():
        for byte in greeting(idA=b"specmesh drafter", idB=b"specmesh verifier"):
            slow.sendall(bytes([byte]))
        assert len(slow.makefile("rb").readline()) == 67


NO_POINTS = [
    "",
    "zz" * 33,
    "41" + "00" * 32,
    "4101" + "00" * 31,
    "41" + "ff" * 32,
    "42" + "11" * 32,
]


@pytest.mark.parametrize(
    "data",
    [
        "",
        "\n",
        "GET / HTTP/1.1\r\nHost: bigbox\r\n\r\n",
        "specmesh pair 2 " + "41" * 33 + "\n",
        "x" * 100_000,
        *(f"specmesh pair 1 {point}\n" for point in NO_POINTS),
    ],
)
def test_strangers_end_nothing(verifier, data):
    with verifier.connect() as connection, suppress(OSError):
        connection.sendall(data.encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert verifier.ask() == BOX


# --- somebody in the middle


def carry(middle, verifier, change):
    """Pass the four lines of an exchange on, changed; return the lines that came."""
    lines = []
    drafter, _ = middle.accept()
    with drafter, verifier.connect() as other:
        ends = [drafter, other]
        readers = [end.makefile("rb") for end in ends]
        for number in range(4):
            line = readers[number % 2].readline()
            if not line:
                break
            lines.append(line)
            ends[1 - number % 2].sendall(change(number, line))
        for reader in readers:
            reader.close()
    return lines


def exchange_through(verifier, change):
    """Return all bytes that somebody in the middle sees, and the drafter's verifier or error."""
    with listen() as middle:
        carried = OTHERS.submit(carry, middle, verifier, change)
        with socket.create_connection(middle.getsockname(), 10) as connection:
            try:
                found = ask(connection, CODE, MAC)
            except (SpecmeshError, OSError) as error:
                found = error
        return b"".join(carried.result(10)), found


@pytest.mark.parametrize("secret", ["01234567", CODE, BOX.key, MAC.key, "bigbox"])
def test_a_listener_sees_no_secret(verifier, secret):
    seen, found = exchange_through(verifier, lambda _, line: line)
    assert found == BOX
    assert secret.encode() not in seen


@pytest.mark.parametrize("changed", range(4))
def test_a_changed_line_pairs_nobody_wrongly(verifier, changed):
    """Only the last line comes after the verifier has let the drafter in."""

    def change(number, line):
        if number != changed:
            return line
        place = len(line) // 2
        other = b"b" if line[place : place + 1] == b"a" else b"a"
        return line[:place] + other + line[place + 1 :]

    _, found = exchange_through(verifier, change)
    assert isinstance(found, SpecmeshError | OSError)
    assert verifier.admitted == ([MAC] if changed == 3 else [])


def reflect(mirror):
    connection, _ = mirror.accept()
    with connection:
        connection.sendall(connection.recv(4096).removeprefix(b"specmesh pair 1 "))
        connection.recv(4096)


def test_our_own_words_are_no_answer():
    with listen() as mirror:
        reflected = OTHERS.submit(reflect, mirror)
        connection = socket.create_connection(mirror.getsockname(), 10)
        with connection, pytest.raises(RemoteProtocolError):
            ask(connection, CODE, MAC)
        reflected.result(10)


# --- introductions


@pytest.mark.parametrize(
    "change", [{"role": "verifier"}, {"key": "cd" * 31}, {"key": "CD" * 32}, {"port": 70000}]
)
def test_introductions_are_checked(verifier, change):
    with pytest.raises((RemoteProtocolError, OSError)):
        verifier.ask(drafter=replace(MAC, **change))
    assert verifier.admitted == []


@pytest.mark.parametrize(
    ("name", "kept"), [("Ann's Mac\x1b[2J", "Ann-s-Mac-2J"), ("", "drafter"), ("x" * 99, "x" * 64)]
)
def test_names_are_made_harmless(verifier, name, kept):
    verifier.ask(drafter=replace(MAC, name=name))
    assert verifier.admitted == [replace(MAC, name=kept)]
