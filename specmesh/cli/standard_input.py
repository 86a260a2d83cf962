"""What is piped into a command."""

import sys

from specmesh.errors import RequestError


def read_text() -> str:
    """Standard input to its end; raises RequestError where it is no UTF-8: a model would be asked something else."""
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RequestError(
            f"standard input is not UTF-8: byte {error.start + 1}, in line {line}, is 0x{raw[error.start]:02x}; "
            "convert it first, for example with iconv -f ISO-8859-1 -t UTF-8"
        ) from None
