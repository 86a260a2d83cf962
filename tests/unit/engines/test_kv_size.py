"""The size of a context: by the settings, the model and the free memory."""

import pytest
from harness.tables import cases

from specmesh.config import ModelSettings, parse_kv_cache
from specmesh.engines.kv_size import ContextSize, ContextWish, context_size, halved
from specmesh.errors import ConfigError

PLENTY = 10**12
CELL = 1000


def size(free=PLENTY, cell_bytes=CELL, **wish):
    """Return (n_ctx, max_sessions, cells) for a model trained with 32,768 ids."""
    if "kv_cache" in wish:
        wish["kv_cache"] = parse_kv_cache(wish["kv_cache"])
    given = {"ctx": None, "trained": 32768, "max_sessions": 8} | wish
    found = context_size(ContextWish(**given), cell_bytes, free)
    return [found.n_ctx, found.max_sessions, found.cells]


@cases(
    "wish, free, expected",
    """
    [{}, 1000000000000, [32768, 8, 262144]]
    [{}, null, [32768, 8, 262144]]
    [{}, 200000000, [32768, 8, 100000]]
    [{}, 20000000, [10000, 8, 10000]]
    [{}, 0, [512, 8, 512]]
    [{"trained": 0}, 1000000000000, [4096, 8, 32768]]
    [{"trained": 128}, 0, [128, 8, 128]]
    [{"ctx": 1000}, 1000000000000, [1000, 8, 8000]]
    [{"ctx": 100000}, 20000000, [100000, 8, 100000]]
    [{"kv_cache": "80000"}, 1000000000000, [32768, 8, 80000]]
    [{"kv_cache": "80000"}, 0, [32768, 8, 80000]]
    [{"kv_cache": "900000"}, 0, [32768, 8, 262144]]
    [{"kv_cache": "2000"}, 0, [2000, 8, 2000]]
    [{"kv_cache": "1K"}, 0, [512, 8, 512]]
    [{"kv_cache": "64M", "ctx": 9000}, 0, [9000, 8, 67108]]
    [{"shared": false}, 1000000000000, [32768, 8, 262144]]
    [{"shared": false}, 200000000, [12500, 8, 100000]]
    [{"shared": false}, 20000000, [4096, 2, 8192]]
    [{"shared": false, "ctx": 30000}, 200000000, [30000, 3, 90000]]
    [{"shared": false, "ctx": 30000}, 0, [30000, 1, 30000]]
    [{"shared": false, "kv_cache": "40000", "ctx": 20000}, 0, [20000, 2, 40000]]
    """,
)
def test_the_size_of_a_context(wish, free, expected):
    assert size(free, **wish) == expected


def test_cells_without_memory_are_for_all():
    assert size(0, 0) == [32768, 8, 262144]


@cases("wish", '{"ctx": 9000, "kv_cache": "1M"} {"ctx": 4294967296}')
def test_what_no_context_can_be(wish):
    with pytest.raises(ConfigError, match="--ctx"):
        size(**wish)


@cases(
    "wish, before, expected",
    """
    [{}, [32768, 8, 100000], [32768, 8, 50000]]
    [{}, [32768, 8, 40000], [20000, 8, 20000]]
    [{"ctx": 32768}, [32768, 8, 40000], null]
    [{"kv_cache": "40000"}, [32768, 8, 40000], null]
    [{"shared": false}, [1000, 8, 8000], [1000, 4, 4000]]
    [{"shared": false}, [1000, 1, 1000], null]
    """,
)
def test_half_of_a_context_that_memory_did_not_suffice_for(wish, before, expected):
    if "kv_cache" in wish:
        wish = wish | {"kv_cache": parse_kv_cache(wish["kv_cache"])}
    given = {"ctx": None, "trained": 32768, "max_sessions": 8} | wish
    found = halved(_size(before), ContextWish(**given))
    assert found == (None if expected is None else _size(expected))


def _size(numbers):
    return ContextSize(n_ctx=numbers[0], max_sessions=numbers[1], cells=numbers[2])


@cases(
    "text, cells, size",
    """
    ["4096", 4096, null] ["512M", null, 536870912] ["8G", null, 8589934592]
    ["1.5GiB", null, 1610612736] ["2KB", null, 2048] ["1TB", null, 1099511627776]
    """,
)
def test_sizes_as_they_are_written(text, cells, size):
    found = parse_kv_cache(text)
    assert (found.cells, found.bytes) == (cells, size)


@cases("text", '"" "-1" "0" "7" "8 G" "8g" "1.5" "G" "half" "1e9" "8GBB"')
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="--kv-cache"):
        parse_kv_cache(text)


def test_a_context_that_is_longer_than_all_cells():
    with pytest.raises(ConfigError, match="--ctx 5000 does not fit into --kv-cache 4096"):
        ModelSettings(engine="llama", model="m", ctx=5000, kv_cache=parse_kv_cache("4096"))
