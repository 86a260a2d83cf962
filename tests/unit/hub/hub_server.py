"""A hub on loopback with the addresses that huggingface_hub uses, and with faults."""

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

from click.testing import CliRunner

from specmesh.cli import main

COMMIT = "c0ffee" + "0" * 34


@dataclass(kw_only=True)
class Repo:
    """Files by name; those larger than 200 bytes are listed with a SHA-256.

    cut: bytes of a file after which its transfers end; they wait for a `stall` first.
    lie: files that are listed with a wrong checksum.
    status: of the answer to a listing; code: the hub's name for it.
    no_range: the hub does not honour Range.
    """

    files: dict[str, bytes]
    cut: dict[str, int] = field(default_factory=dict)
    stall: threading.Event | None = None
    lie: set[str] = field(default_factory=set)
    status: int = 200
    code: str = ""
    no_range: bool = False

    def sibling(self, name):
        """Return a file as a listing has it."""
        content = self.files[name]
        size = len(content)
        entry = {"rfilename": name, "size": size, "blobId": "0" * 40}
        if size > 200:
            listed = b"another content" if name in self.lie else content
            sha256 = hashlib.sha256(listed).hexdigest()
            entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 100}
        return entry


NO_REPO = Repo(files={}, status=404, code="RepoNotFound")


class HubServer(ThreadingHTTPServer):
    """Serves `repos` by id at `url` until `close`.

    asked: how many requests came.
    served: the file, its Range header and the bytes that went out, of each request for a file.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos = {}
        self.served = []
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def handle_error(self, request, client_address):
        """Print nothing about clients that go away."""

    def close(self):
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked += 1
        owner, name, *rest = unquote(urlsplit(self.path).path).removeprefix("/").split("/")
        if owner == "api":
            self._listing("/".join(rest[:2]), rest[2:])
        else:
            self._file(self.server.repos[f"{owner}/{name}"], "/".join(rest[2:]))

    def _listing(self, hub_id, revision):
        repo = self.server.repos.get(hub_id, NO_REPO)
        siblings = [repo.sibling(name) for name in repo.files]
        listing = {"id": hub_id, "modelId": hub_id, "sha": COMMIT, "siblings": siblings}
        headers = {"Content-Type": "application/json"}
        if repo.code:
            headers["X-Error-Code"] = repo.code
        if repo.status == 200:
            assert revision in ([], ["revision", "main"], ["revision", "v1"])
        self._answer(repo.status, json.dumps(listing).encode(), headers)

    def _file(self, repo, name):
        content = repo.files[name]
        requested = self.headers["Range"]
        cut = repo.cut.get(name)
        start = 0
        status = 200
        headers = {}
        if requested and not repo.no_range:
            start = int(requested.removeprefix("bytes=").partition("-")[0])
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers["Content-Length"] = str(len(content) - start)
        body = content[start:cut]
        self.server.served.append((name, requested, len(body)))
        self._answer(status, body, headers)
        if cut is not None:
            self._break_off(repo.stall)

    def _break_off(self, stall):
        if stall is not None:
            stall.wait(30)
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _answer(self, status, body, headers):
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_):
        """Print no requests: tests look into `served`."""


@dataclass
class Models:
    """`specmesh models ...`, in this process when called, in one of its own by `start`."""

    variables: dict[str, str]
    folder: Path

    def __call__(self, *words):
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(
                main, ["models", *words], env=self.variables, catch_exceptions=False
            )

    def start(self, *words, **variables):
        env = self.variables | variables
        for name, value in os.environ.items():
            if not name.startswith(("HF_", "SPECMESH_")):
                env.setdefault(name, value)
        program = [sys.executable, "-m", "specmesh", "models", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            program, stdout=pipe, stderr=pipe, text=True, env=env, cwd=self.folder
        )
