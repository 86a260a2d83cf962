"""`python -m specmesh.wire explain HEX`: print the fields of a frame."""

import sys

from specmesh.errors import FrameError
from specmesh.wire.explain import explain, from_hex

USAGE = "usage: python -m specmesh.wire explain HEX"


def main(arguments: list[str]) -> int:
    """Print a frame; return the exit code."""
    if len(arguments) < 2 or arguments[0] != "explain":
        print(USAGE, file=sys.stderr)  # noqa: T201 - it prints
        return 2
    try:
        for line in explain(from_hex("".join(arguments[1:]))):
            print(line)  # noqa: T201 - it prints
    except FrameError as error:
        print(error, file=sys.stderr)  # noqa: T201 - it prints
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
