"""Machines that `specmesh demo` imitates. The standard library only: commands list them."""

STEPS_MS = {
    "h100-70b": {
        1: 18.9,
        2: 19.7,
        3: 21.9,
        4: 25.2,
        6: 32.3,
        8: 38.8,
        9: 36.9,
        16: 37.5,
        17: 43.7,
        32: 48.7,
    },
    "h100-8b": {1: 3.09, 2: 3.61, 4: 4.25, 8: 5.90, 16: 6.81, 32: 7.99},
    "spark-7b": {1: 34.2, 2: 36.7, 4: 38.3, 8: 40.9, 16: 47.8, 32: 53.9},
}
"""Milliseconds of a target's step by its rows.

The targets: 70B and 8B in Q4_0 on an H100, 7B in Q8_0 on a DGX Spark.
"""

DRAFT_MS = 3.3  # a draft model of about a billion weights on a Mac


def step_ms(machine: str, rows: int) -> float:
    """Interpolate between the known widths; beyond these a step lasts as long as the widest."""
    steps = STEPS_MS[machine]
    rows = min(max(rows, 1), max(steps))
    narrow = max(known for known in steps if known <= rows)
    wide = min(known for known in steps if known >= rows)
    share = (rows - narrow) / max(wide - narrow, 1)
    return steps[narrow] + share * (steps[wide] - steps[narrow])
