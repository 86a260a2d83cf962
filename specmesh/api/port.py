"""The API's TCP port: where it listens, and the keys that open it."""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from specmesh.errors import ConfigError
from specmesh.security.addresses import Way, way

MAX_KEYS = 64 * 1024
"""Bytes of a file of keys."""


@dataclass(slots=True)
class Keys:
    """The keys one of which is asked for; none: this machine only. They may change while requests come, all at once.

    file: where they stand.
    """

    current: tuple[str, ...] = ()
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Port:
    """host and port to listen at, and what is asked of whoever comes. origins: of pages that browsers may let ask."""

    host: str
    port: int
    keys: Keys = field(default_factory=Keys)
    origins: tuple[str, ...] = ()


def parse_port(http: str | None, key_file: Path | None, origins: tuple[str, ...] = ()) -> Port | None:
    """`--http HOST:PORT`, the file with its keys and each `--allow-origin`; raises ConfigError, also for an open port
    without a key."""
    if http is None:
        if origins:
            raise ConfigError("--allow-origin without --http opens nothing: give both", "allow_origin")
        if key_file is not None:
            raise ConfigError("--api-key-file without --http opens nothing: give both", "api_key_file")
        return None
    try:
        parts = urlsplit(f"//{http}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.path or parts.username:
        raise ConfigError(f"--http {http!r} is not HOST:PORT: write 127.0.0.1:8080", "http")
    keys = read_keys(key_file) if key_file is not None else ()
    if not keys and way(host) is not Way.SAME_MACHINE:
        raise ConfigError(f"--http {http} is open to other machines: set --api-key-file FILE, or use 127.0.0.1", "http")
    for origin in origins:
        if origin == "*" and not keys:
            raise ConfigError("--allow-origin '*' lets every page ask: set --api-key-file FILE", "allow_origin")
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+", origin):
            raise ConfigError(f"--allow-origin {origin!r} is no origin: write https://page.example", "allow_origin")
    return Port(host, port, Keys(keys, key_file), origins)


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one per line; raises ConfigError where it has none, or others may read it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_KEYS + 1)
        lines = raw.decode("ascii").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): name a readable file", "api_key_file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: keys are plain ASCII, one per line", "api_key_file") from None
    if mode & stat.S_IRWXO:
        raise ConfigError(f"{path}: everybody on this machine can read the keys: chmod 600 {path}", "api_key_file")
    keys = tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))
    if not keys or len(raw) > MAX_KEYS:
        raise ConfigError(f"{path}: needs at least one key, one per line, 64 KiB at most", "api_key_file")
    return keys
