"""Names that a daemon's resolver comes to know, or never answers for."""

from processes import edited

RESOLVER = """
import socket, time
real = socket.getaddrinfo
def found(host, port, *more, **options):
    known = dict(line.split() for line in open(NAMES))
    while known.get(host) == 'hangs': time.sleep(1)
    return real(known.get(host, host), port, *more, **options)
socket.getaddrinfo = found
"""


class Names:
    """Names that a daemon's resolver knows, by a file that is read for each look-up."""

    def __init__(self, path):
        self._path = path
        self.know()

    def know(self, **numbers):
        """Let these names, without their .test, mean these numbers; "hangs" is no number."""
        self._path.write_text("".join(f"{name}.test {one}\n" for name, one in numbers.items()))

    @property
    def program(self):
        """Return `specmesh` with that resolver."""
        return edited(f"NAMES = {str(self._path)!r}", RESOLVER)
