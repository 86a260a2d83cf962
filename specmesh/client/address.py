"""The addresses of daemons: their Unix sockets, or a URL."""

import fcntl
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from specmesh.errors import ConfigError, DaemonUnreachable, Starting, WentAway
from specmesh.paths import MAX_SOCKET_PATH, candidate_sockets, expanded, lock_of

if TYPE_CHECKING:
    import ssl

LONGEST_PATIENCE = 10.0**9
"""Seconds; a socket takes a few more."""

_START = "start one (specmesh verifier)"

_WITHOUT_SCHEME = re.compile(r"[^/]+:\d+(/.*)?")
"""A URL whose http:// was left out, such as localhost:8080/v1."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Unix sockets, of which the first that answers is used."""

    paths: Sequence[Path]
    host: str = field(default="localhost", init=False)
    base: str = field(default="", init=False)

    def connect(self, timeout: float | None, *, waits: bool) -> socket.socket:
        """Return a connection to the first daemon that answers.

        timeout: of the connection, in seconds; None: none, 0: it does not block.
        waits: prefer a daemon that is starting to later ones, which may have another model.
        Raises DaemonUnreachable, WentAway for a daemon whose queue is full, or Starting.
        """
        closed: list[Path] = []
        for path in self.paths:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout)
            try:
                connection.connect(os.fspath(path))
            except BlockingIOError:  # its queue is full
                connection.close()
                raise WentAway(f"the daemon at {path} does not answer", "see its log") from None
            except PermissionError:
                connection.close()
                closed.append(path)
            except OSError:
                connection.close()
                if waits and starting(path):
                    break
            else:
                return connection
        for path in filter(starting, self.paths):
            raise Starting(f"the daemon at {path} is starting")
        tried = ", ".join(str(path) for path in self.paths)
        remedy = f"{_START} or give --socket PATH"
        if closed:
            remedy += f"; this user may not use {closed[0]}"
        raise DaemonUnreachable(f"no daemon answers at {tried}", remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """A daemon's TCP port, or a proxy's.

    tls: what encrypts the connection; None: nothing.
    host: for the header, with the port if the URL has one.
    base: of its paths, without a last slash.
    """

    text: str
    tls: "ssl.SSLContext | None"
    name: str
    port: int
    host: str
    base: str

    def connect(self, timeout: float | None) -> socket.socket:
        """Return a connection. Raises DaemonUnreachable.

        timeout: of the connection, in seconds; None: none.
        """
        try:
            connection = socket.create_connection((self.name, self.port), timeout)
        except OSError as error:
            raise self.unreachable(error) from None
        if self.tls is None:
            return connection
        try:
            return self.tls.wrap_socket(connection, server_hostname=self.name)
        except OSError as error:
            connection.close()
            raise self.unreachable(error) from None

    def unreachable(self, error: OSError) -> DaemonUnreachable:
        """Return the error of a connection that could not be made."""
        if self.tls is not None:
            import ssl  # noqa: PLC0415  # as in _tls

            if isinstance(error, ssl.SSLCertVerificationError):
                what = f"the certificate of {self.text} is not trusted ({error.verify_message})"
                return DaemonUnreachable(
                    what, "use the name that it is for, and give its authority's file as ca_file"
                )
            if isinstance(error, ssl.SSLError):
                what = f"no encrypted connection to {self.text} ({error.reason})"
                return DaemonUnreachable(
                    what, "give http:// for a daemon's own port, https:// for a proxy's"
                )
        return DaemonUnreachable(
            f"no daemon answers at {self.text} ({error})", f"{_START} with --http, or check the URL"
        )


Address = Sockets | Url


def address_of(
    given: str | os.PathLike[str] | None, ca_file: str | os.PathLike[str] | None = None
) -> Address:
    """Return the address that a user gave: a URL, a socket's path, or None.

    None: SPECMESH_SOCKET, else the sockets of the user and then of the system.
    ca_file: of the certificates that https trusts, in PEM; None: the system's.
    Raises ConfigError for a URL of another kind, a path that no socket has, or a file that cannot
    be used.
    """
    if isinstance(given, str) and "://" in given:
        return _url(given, ca_file)
    if ca_file is not None:
        raise ConfigError("ca_file is for an address that begins with https", "leave it out")
    if given is None:
        return local_sockets()
    if isinstance(given, str) and _WITHOUT_SCHEME.fullmatch(given):
        raise ConfigError(f"{given!r} is neither a URL nor a path", f"give http://{given}")
    return Sockets([_socket(given)])


def local_sockets() -> Sockets:
    """Return the sockets that a client tries without an address."""
    named = os.environ.get("SPECMESH_SOCKET")
    if named:
        return Sockets([_socket(named)])
    return Sockets(candidate_sockets())


def checked_timeout(timeout: object) -> float | None:
    """Return a time-out in seconds, None for none. Raises ConfigError for any other value."""
    if timeout is None:
        return None
    is_flag = isinstance(timeout, bool)
    if isinstance(timeout, int | float) and not is_flag and 0 < timeout <= LONGEST_PATIENCE:
        return timeout
    why = f"timeout must be a number of seconds above 0, {LONGEST_PATIENCE:g} at most"
    raise ConfigError(why, "None is no limit")


def checked_key(key: object) -> str:
    """Return an API key. Raises ConfigError for one that no header can hold."""
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key != key.strip():
        raise ConfigError("the API key has letters that no header can hold", "give it as it is")
    return key


def _socket(given: object) -> Path:
    """Return the path of a socket. Raises ConfigError."""
    path = given
    if isinstance(given, os.PathLike):
        path = os.fspath(cast("os.PathLike[str]", given))
    if not isinstance(path, str) or not path or "\0" in path:
        why = f"{given!r} is no address of a daemon"
        raise ConfigError(why, "give a socket's path, or a URL like http://127.0.0.1:8080")
    path = expanded(path)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        why = f"the path {path} is too long for a socket"
        raise ConfigError(why, f"give one of at most {MAX_SOCKET_PATH} bytes")
    return Path(path)


def _tls(ca_file: str | os.PathLike[str] | None) -> "ssl.SSLContext":
    """Return what encrypts connections and trusts a file's certificates, or the system's."""
    import ssl  # noqa: PLC0415  # commands use sockets, and loading it takes long

    if ca_file is None:
        return ssl.create_default_context()
    path = expanded(ca_file)
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        what = f"no certificates can be read from {path} ({error.strerror or error})"
        raise ConfigError(what, "give a file in PEM with that of the authority") from None


def _url(text: str, ca_file: str | os.PathLike[str] | None) -> Url:
    wanted = "give one like http://127.0.0.1:8080 or https://HOST/v1"
    try:
        parts = urlsplit(text)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as its look-up does
    except ValueError as error:
        raise ConfigError(f"{text!r} is no URL ({error})", wanted) from None
    is_plain = not (parts.query or parts.fragment or parts.username is not None)
    is_text = text.isascii() and text.isprintable() and " " not in text
    if parts.scheme not in ("http", "https") or not parts.hostname or not (is_plain and is_text):
        raise ConfigError(f"{text!r} is no URL of a daemon", wanted)
    tls: ssl.SSLContext | None = None
    if parts.scheme == "https":
        tls = _tls(ca_file)
    elif ca_file is not None:
        raise ConfigError("ca_file is for an address that begins with https", "leave it out")
    if port is None:
        port = 80 if tls is None else 443
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Url(
        text=text,
        tls=tls,
        name=parts.hostname,
        port=port,
        host=parts.netloc,
        base=base,
    )


def starting(path: Path) -> bool:
    """Return True if a daemon has locked a socket's path.

    If none listens there, the daemon is about to, or has just ended.
    """
    # a file that is no lock must not make this wait
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(lock_of(path), flags), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        # another error: there is no lock, or this user may not look at it
        return isinstance(error, BlockingIOError)
    return False
