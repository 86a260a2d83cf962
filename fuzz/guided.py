"""Runs one target under atheris, guided by coverage: python -m fuzz.guided TARGET [OPTION OF LIBFUZZER]..."""

import importlib
import sys

import atheris

INSTRUMENTED = ["specmesh.wire", "specmesh.core", "fuzz"]


def main() -> None:
    """Does not return: libFuzzer ends the process, with a code other than 0 where an input broke the target."""
    name = sys.argv[1]
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = importlib.import_module(f"fuzz.{name}")

    def play(data: bytes) -> None:
        target.run(data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], play)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
