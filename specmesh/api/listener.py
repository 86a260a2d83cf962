"""The Unix domain socket of the API. A daemon opens it before it imports the API."""

import os
import socket
import stat
from pathlib import Path

from specmesh.errors import ConfigError
from specmesh.paths import SYSTEM_DIR

BACKLOG = 2048  # connections that wait to be accepted


def listen_at(path: Path, system: Path = SYSTEM_DIR) -> socket.socket:
    """Return a socket that listens at `path`; the caller holds the lock of the instance.

    It replaces a stale socket and nothing else. It is for this user only and, in the system's
    folder, for the members of the service's group. Raises ConfigError.
    """
    remedy = "choose another --socket"
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} exists and is not a socket", f"remove it or {remedy}")
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(f"cannot replace {path} ({error.strerror})", remedy) from None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o117 if path.parent == system else 0o177)
    try:
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {path}: {error.strerror}") from None
    finally:
        os.umask(old)
    listener.listen(BACKLOG)
    return listener
