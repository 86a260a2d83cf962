"""Frames in words: `python -m specmesh.wire explain HEX`."""

import subprocess
import sys
from zlib import crc32

import pytest

from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import encode
from specmesh.wire.explain import explain, from_hex

DRAFT = m.Draft(7, 3, crc32(b"prefix"), (5, 6))


def run(*arguments):
    command = [sys.executable, "-m", "specmesh.wire", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_token_frame():
    lines = list(explain(encode(DRAFT)))
    assert lines[-5:] == [
        "Draft",
        "  session = 7",
        "  base = 3",
        f"  prefix_crc = {DRAFT.prefix_crc}",
        "  ids = [5, 6]",
    ]


def test_a_control_frame():
    lines = list(explain(encode(m.Ping(number=9))))
    assert "  number = 9" in lines


def test_a_piece_of_a_body():
    *_, base, text = explain(encode(m.Body(6, 65_536, 300 * "x")))
    assert base == "  base = 65536"
    assert text.startswith('  text = "xxx')
    assert text.endswith("... (302 characters)")


def test_a_long_value_is_cut():
    *_, line = explain(encode(m.Draft(1, 0, 0, tuple(range(500)))))
    assert line.startswith("  ids = [")
    assert line.endswith("characters)")


def test_a_damaged_frame_shows_its_header_first():
    frame = bytearray(encode(DRAFT))
    frame[-1] ^= 1
    lines = []
    with pytest.raises(FrameError, match="checksum"):
        lines.extend(explain(bytes(frame)))
    assert lines[1] == "  magic = b'SM'"


def test_digits_may_have_blanks():
    assert from_hex("53 4d\n02") == b"SM\x02"


def test_the_command_prints_a_frame():
    assert "  ids = [5, 6]" in run("explain", encode(DRAFT).hex()).stdout


def test_the_command_refuses_what_is_no_frame():
    done = run("explain", "zz")
    assert done.returncode == 1
    assert "hexadecimal" in done.stderr


def test_the_command_has_a_usage():
    assert run().returncode == 2
