"""The areas of a process's memory that weights may be in."""

from specmesh.engines.llama.large_pages import areas

MAPS = """\
55d0c0000000-55d0c8000000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0008000000 r--s 00000000 fe:00 1604                       /models/with a blank.gguf
7f0010000000-7f0018000000 rw-p 00000000 00:00 0
7f0020000000-7f0020800000 rw-p 00000000 00:00 0
7f0030000000-7f0038000000 ---p 00000000 00:00 0
7f0040000000-7f0041000000 rw-p 00000000 00:00 0
7f0050000000-7f0058000000 rw-p 00000000 fe:00 1605                       /models/b.gguf
"""


def test_areas_of_memory_that_may_hold_weights():
    """They are large, without a file or a name, and may be written to."""
    assert areas(MAPS.splitlines()) == [(0x7F0010000000, 2**27), (0x7F0040000000, 2**24)]
