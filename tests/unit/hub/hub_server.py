"""A hub on loopback: the addresses huggingface_hub uses, over a tree in memory, with the faults a test asks for."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from click.testing import CliRunner, Result

from specmesh.cli import main

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Repo:
    """Files by name; those larger than 200 bytes are told with a SHA-256.

    cut:         no transfer of that file gets beyond so many bytes; where there is a `stall`, it ends when that is set.
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
        value = hashlib.sha256(
            b"another content" if name in self.lie else self.files[name]
        ).hexdigest()
        return told | (
            {"lfs": {"sha256": value, "size": size, "pointerSize": 100}} if size > 200 else {}
        )


class HubServer(ThreadingHTTPServer):
    """Serves `repos` by id at `url` until `close`. asked: how many requests came. served: file, its Range header and
    the bytes that went out, of each request for a file."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = {}
        self.served: list[tuple[str, str | None, int]] = []
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing in the tests' stderr of a client that goes away mid-answer."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.server.asked += 1
        if parts[:2] == ["api", "models"]:
            self._listing("/".join(parts[2:4]), parts[5] if parts[4:5] == ["revision"] else "main")
        else:
            self._file(self.server.repos["/".join(parts[:2])], "/".join(parts[4:]))

    def _listing(self, hub_id: str, revision: str) -> None:
        repo = self.server.repos.get(hub_id, Repo({}, status=404, code="RepoNotFound"))
        told = {
            "id": hub_id,
            "modelId": hub_id,
            "sha": COMMIT,
            "siblings": [repo.sibling(name) for name in repo.files],
        }
        headers = {"Content-Type": "application/json"} | (
            {"X-Error-Code": repo.code} if repo.code else {}
        )
        if repo.status == 200:
            assert revision in {"main", "v1"}
        self._answer(repo.status, json.dumps(told).encode(), headers)

    def _file(self, repo: Repo, name: str) -> None:
        raw = repo.files[name]
        wanted = None if repo.no_range else self.headers["Range"]
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        headers = {"Content-Range": f"bytes {start}-{len(raw) - 1}/{len(raw)}"} if wanted else {}
        cut = repo.cut.get(name)
        body = raw[start:cut]
        self.server.served.append((name, self.headers["Range"], len(body)))
        self._answer(206 if wanted else 200, body, headers, len(raw) - start)
        if cut is not None:
            if repo.stall is not None:
                repo.stall.wait(30)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], size: int | None = None
    ) -> None:
        """Answer with this body; size: how long it is said to be."""
        self.send_response(status)
        for key, value in {
            **headers,
            "Content-Length": str(len(body) if size is None else size),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Requests are looked at in `served`, not printed."""


@dataclass
class Models:
    """`specmesh models ...` with these variables: called, in this process; by `start`, in one of its own."""

    variables: dict[str, str]
    folder: Path

    def __call__(self, *words: object) -> Result:
        command = ["models", *map(str, words)]
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(main, command, env=self.variables, catch_exceptions=False)

    def start(self, *words: object, **variables: str) -> "subprocess.Popen[str]":
        ours = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HF_", "SPECMESH_"))
        }
        program = [sys.executable, "-m", "specmesh", "models", *map(str, words)]
        env, pipe = ours | self.variables | variables, subprocess.PIPE
        return subprocess.Popen(
            program, stdout=pipe, stderr=pipe, text=True, env=env, cwd=self.folder
        )
