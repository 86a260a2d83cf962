"""Threads of two engines on one host."""

from types import SimpleNamespace

from specmesh.core.scheduling.threads import ThreadShare

HERE = SimpleNamespace(host="h", cpu_threads=2)
ELSEWHERE = SimpleNamespace(host="other", cpu_threads=8)


def test_default_threads_follow_who_computes_here():
    share = ThreadShare(8, 8, "h", drafts=False, follows=True)
    assert share.beside([ELSEWHERE]) is None
    assert share.threads == 8
    assert share.beside([HERE, ELSEWHERE]).name == "cpu_threads"
    assert share.threads == 6
    assert share.beside([]).name == "cpu_threads"
    assert share.threads == 8
