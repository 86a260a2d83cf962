"""Slopes: of lines, of noise, of a process that grows."""

import mmap
import os
import random
import sys

import pytest

from soak.slopes import HOUR, Sample, descriptors, growth, memory


def test_growth_after_the_warm_up():
    """What came before does not count; a leak is seen through noise, in its own units."""
    rng = random.Random(1)

    def grown(leak_mb_per_h, warm_up=100.0):
        memory = [50e6 * (at < 100) + leak_mb_per_h * 1e6 * at / HOUR + rng.gauss(0, 20e3) for at in range(900)]
        found = growth([Sample(float(at), int(held), 20 + at // 450) for at, held in enumerate(memory)], warm_up)
        assert found is not None
        return found

    assert grown(10.0).memory_mb_per_h == pytest.approx(10.0, abs=0.1)
    assert abs(grown(0.0).memory_mb_per_h) < 0.1
    assert abs(grown(0.0, warm_up=0.0).memory_mb_per_h) > 10
    assert grown(0.0).descriptors == (20, 21)
    assert grown(0.0).descriptors_per_h > 1
    assert (grown(0.0).samples, grown(0.0).seconds) == (800, 799.0)


def test_connections_that_come_and_go_are_no_growth():
    """Where one is counted too early or too late now and then, or is not there, be it at one end of the time only; what
    is never closed shows, one within a tenth of the time too, and many to within one."""
    rng = random.Random(1)

    def grown(leak_per_h, noise):
        open_ = [20 + int(leak_per_h * at / HOUR) + rng.choice(noise(at)) for at in range(900)]
        found = growth([Sample(float(at), 0, held) for at, held in enumerate(open_)], 0.0)
        assert found is not None
        return found.descriptors_per_h

    for noise in (lambda _: (-1, 0, 0, 0, 1), lambda at: (-1, 0, 0, 0) if at < 300 else (0, 0, 0, 2)):
        assert grown(0.0, noise) == 0
        assert grown(60.0, noise) == pytest.approx(60.0, abs=5.0)
        assert grown(6.0, noise) == pytest.approx(5.0)


def test_too_few_samples():
    assert growth([Sample(1.0, 1, 1), Sample(2.0, 1, 1)], 0.0) is None
    assert growth([Sample(float(at), 1, 1) for at in range(9)], 100.0) is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_what_this_process_has():
    """Memory taken and descriptors opened show. Pages of its own mapping: a heap may have as much to give back."""
    before, opened = memory(os.getpid()), descriptors(os.getpid())
    with mmap.mmap(-1, 30_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held, open(os.devnull, "rb"):  # noqa: PTH123
        held[:: mmap.PAGESIZE] = b"\1" * len(range(0, len(held), mmap.PAGESIZE))
        assert 29e6 < memory(os.getpid()) - before < 40e6
        assert descriptors(os.getpid()) == opened + 1
    assert descriptors(os.getpid(), asking=2) == opened - 2
