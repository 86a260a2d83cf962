"""A hub on loopback: the addresses huggingface_hub uses, over a tree in memory, with the faults a test asks for."""

import hashlib
import json
import socket
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Served:
    """One request for a file's bytes: which, its Range header, and how many bytes went out."""

    name: str
    range: str | None
    sent: int


@dataclass
class Repo:
    """Files by name; those larger than 200 bytes are told with a SHA-256.

    cut:         a transfer of that file ends after so many bytes, once; where there is a `stall`, when that is set.
    lie:         files for which another content's checksum is told.
    status:      what the listing is answered with instead. code: the hub's name for it.
    no_range:    Range is not honoured.
    """

    files: dict[str, bytes]
    cut: dict[str, int] = field(default_factory=dict)
    stall: threading.Event | None = None
    lie: set[str] = field(default_factory=set)
    status: int = 200
    code: str = ""
    no_range: bool = False

    def sibling(self, name: str) -> dict[str, object]:
        size = len(self.files[name])
        told: dict[str, object] = {"rfilename": name, "size": size, "blobId": "0" * 40}
        value = hashlib.sha256(b"another content" if name in self.lie else self.files[name]).hexdigest()
        return told | ({"lfs": {"sha256": value, "size": size, "pointerSize": 100}} if size > 200 else {})


class HubServer:
    """Serves `repos` by id at `url` until `close`; `served` is what was transferred."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.served: list[Served] = []
        self.asked: list[str] = []
        owner = self

        class Handler(_Handler):
            hub = owner

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away mid-answer is part of some tests; it must not print into their stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    stall: threading.Event | None = None
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.hub.asked.append(f"{self.command} {self.path}")
        if parts[:2] == ["api", "models"]:
            self._listing("/".join(parts[2:4]), parts[5] if parts[4:5] == ["revision"] else "main")
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]), "/".join(parts[4:]))
        else:
            self._refuse(404)

    def _listing(self, hub_id: str, revision: str) -> None:
        repo = self.hub.repos.get(hub_id)
        if repo is None:
            return self._refuse(404, "RepoNotFound")
        if repo.status != 200:
            return self._refuse(repo.status, repo.code)
        if revision not in {"main", "v1"}:
            return self._refuse(404, "RevisionNotFound")
        told = {"id": hub_id, "modelId": hub_id, "sha": COMMIT, "siblings": [repo.sibling(name) for name in repo.files]}
        return self._answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _file(self, hub_id: str, name: str) -> None:
        repo = self.hub.repos[hub_id]
        if name not in repo.files:
            return self._refuse(404, "EntryNotFound")
        raw = repo.files[name]
        wanted = None if repo.no_range else self.headers["Range"]
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        headers = {"Content-Range": f"bytes {start}-{len(raw) - 1}/{len(raw)}"} if wanted else {}
        self.stall = repo.stall
        cut = repo.cut.pop(name, None)
        return self._answer(206 if wanted else 200, raw[start:], headers, cut, name)

    def _answer(self, status: int, raw: bytes, headers: dict[str, str], cut: int | None = None, name: str = "") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        body = raw if cut is None else raw[:cut]
        if name:
            self.hub.served.append(Served(name, self.headers["Range"], len(body)))
        self.wfile.write(body)
        if cut is not None:
            self.wfile.flush()
            if self.stall is not None:
                self.stall.wait(30)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _refuse(self, status: int, code: str = "") -> None:
        self._answer(status, b"{}", {"X-Error-Code": code} if code else {})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Requests are looked at in `served` and `asked`, not printed."""
