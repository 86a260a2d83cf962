"""A proxy before a daemon, which sees and may change the bodies that a client sends."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from work import Place

Body = dict[str, Any]
Passing = Callable[[BaseHTTPRequestHandler, Body | None], Body | None]
"""Takes a request and its body, and returns the body to pass on; None for a request without one."""

DROPPED = ("host", "content-length", "accept-encoding", "connection")
"""Headers that are not passed on as they are."""


@contextmanager
def through(place: Place, passing: Passing) -> Iterator[Place]:
    """Yield the same place behind a proxy."""

    class Handler(BaseHTTPRequestHandler):
        """Passes requests on."""

        def do_GET(self) -> None:
            """Pass on a request without a body."""
            passing(self, None)
            self._pass_on(None)

        def do_POST(self) -> None:
            """Pass on a body, perhaps changed."""
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            self._pass_on(json.dumps(passing(self, json.loads(raw))).encode())

        def _pass_on(self, raw: bytes | None) -> None:
            headers = dict(self.headers)
            for name in self.headers:
                if name.lower() in DROPPED:
                    headers.pop(name, None)
            connection = HTTPConnection(urlsplit(place.url).netloc)
            connection.request(self.command, self.path, raw, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type") or "")
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(piece)
            connection.close()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Place(place.name, f"http://127.0.0.1:{server.server_address[1]}/v1", place.key)
    finally:
        server.shutdown()
        server.server_close()
