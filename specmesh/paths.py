"""The paths of the daemons' local sockets, each with a lock for one daemon, and of models.

Light: a daemon takes its lock before it imports modules that take long.
"""

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from specmesh.errors import Busy, ConfigError, NotThereYet

MAX_SOCKET_PATH = 103
"""Bytes of the longest path that every platform's sun_path can hold (macOS: 104 with its NUL)."""

SYSTEM_DIR = Path("/run/specmesh" if sys.platform == "linux" else "/var/run/specmesh")
ROLES = ("verifier", "drafter")


def user_runtime_dir() -> Path:
    """Return this user's folder for sockets; it may not exist yet."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/specmesh/run"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "specmesh"
    # pam_systemd's folder may exist without the variable (sudo, cron).
    pam = Path(f"/run/user/{os.getuid()}")
    if pam.is_dir():
        return pam / "specmesh"
    return Path.home() / ".cache/specmesh/run"


def default_socket(role: str) -> Path:
    return user_runtime_dir() / f"{role}.sock"


def lock_of(path: Path) -> Path:
    """Return the file that a daemon locks from before its socket exists until after its end."""
    return Path(f"{path}.lock")


def candidate_sockets() -> list[Path]:
    """Return the sockets that a client tries: first the user's, then the system's."""
    user = [default_socket(role) for role in ROLES]
    system = [SYSTEM_DIR / f"{role}.sock" for role in ROLES]
    return user + system


def bundled(name: str) -> str:
    """Return the path of a bundled model: target.gguf, drafter.gguf or drafter-hf."""
    return str(Path(__file__).parent / "models" / name)


def expanded(path: str | os.PathLike[str]) -> str:
    """Return a path with its user's home in the place of ~.

    No shell expands files of settings, or variables.
    """
    return os.path.expanduser(path)  # noqa: PTH111 - Path's own raises for an unknown user


def models_dir() -> Path:
    """Return the folder of models: SPECMESH_MODELS_DIR, or one in the platform's cache folder."""
    chosen = os.environ.get("SPECMESH_MODELS_DIR")
    if chosen:
        return Path(expanded(chosen))
    from platformdirs import user_cache_path

    return user_cache_path("specmesh") / "models"


def config_folders() -> list[Path]:
    """Return the folders of files of settings: the user's, then the system's."""
    from platformdirs import user_config_path

    system = (
        "/Library/Application Support/specmesh" if sys.platform == "darwin" else "/etc/specmesh"
    )
    return [user_config_path("specmesh"), Path(system)]


_WRITABLE = "others may write there"


def check_socket_path(path: Path) -> None:
    """Raise ConfigError if the path is too long for a socket, or no file's."""
    if path.name in ("", ".."):
        remedy = "give one in a folder of yours, or leave it out"
        raise ConfigError(f"--socket {path} is no file's name", remedy)
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        reason = f"the socket path {path} has {size} bytes, {MAX_SOCKET_PATH} at most"
        raise ConfigError(reason, "give another --socket")


def prepare_folder(path: Path) -> None:
    """Make the folder of a socket; a new one is for this user only.

    Raises ConfigError if it cannot be made, or if another user could replace our socket.
    """
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = _open_to_others(folder)
    except OSError as error:
        failure = f"cannot make the folder {folder} for the socket: {error.strerror}"
        raise ConfigError(failure) from None
    if reason:
        remedy = "choose another --socket"
        if reason == _WRITABLE:
            remedy = f"run `chmod go-w {folder}`, or {remedy}"
        raise ConfigError(f"the folder {folder} for the socket is not safe ({reason})", remedy)


def _open_to_others(folder: Path) -> str:
    """Return the reason for which other users may replace a folder's files, or "".

    In a sticky folder, such as /tmp, only the owner of a file may. A group of one user, as many
    systems have it, has no others.
    """
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "it is a link"
    if found.st_uid not in (0, os.geteuid()):
        return "it is another user's"
    if found.st_mode & stat.S_ISVTX:
        return ""
    by_group = found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
    if by_group or found.st_mode & stat.S_IWOTH:
        return _WRITABLE
    return ""


def _is_own_group(number: int) -> bool:
    """Return True if a group has this user's name and no other members."""
    import grp
    import pwd

    try:
        group = grp.getgrgid(number)
        user = pwd.getpwuid(os.geteuid())
    except KeyError:  # without a name, as in a container, it may have any members
        return False
    return group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def check_there(path: Path, option: str) -> None:
    """Raise NotThereYet if the file of an option does not exist; reading shows other faults."""
    try:
        path.stat()
    except FileNotFoundError:
        raise NotThereYet(f"{option}: there is no {path}", "name a readable file") from None
    except OSError:
        return


def read_text(path: Path, limit: int, what: str) -> str:
    """Return the text of a file that a person wrote.

    Raises ConfigError for a file that is no text or has more than `limit` bytes; what: its purpose.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
        if len(raw) > limit:
            raise ConfigError(f"{path}: longer than {limit} bytes: is this {what}?")
        return raw.decode("utf-8-sig")
    except OSError as error:
        reason = f"{path}: cannot be read ({error.strerror})"
        raise ConfigError(reason, "name a readable file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8", "save the file as UTF-8 text") from None


def write_whole(
    path: Path, raw: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Write a file whole or not at all, whatever interrupts, and make its folder.

    Raises OSError.
    """
    import tempfile

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(number, "wb") as file:
            if owner is not None:
                os.fchown(number, *owner)
            os.fchmod(number, mode)
            file.write(raw)
            file.flush()
            os.fsync(number)
        Path(name).replace(path)
    except BaseException:  # an interrupt, too, leaves no part behind
        Path(name).unlink(missing_ok=True)
        raise


# A client that looks for a daemon holds the lock for a moment, too.
TRIES = 5
TRY_PAUSE = 0.02  # seconds between two tries


@contextmanager
def instance_lock(path: Path) -> Generator[None]:
    """Hold the lock of a socket: one daemon per socket path, also after a crash.

    It is an flock, not a pid file. While it is held clients know that a daemon is starting, see
    `specmesh.client`. Its file stays. Raises Busy if another daemon holds it, ConfigError if it
    cannot be written.
    """
    check_socket_path(path)
    prepare_folder(path)
    lock = lock_of(path)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.fdopen(os.open(lock, flags, 0o600), "r+", errors="replace")
    except OSError as error:
        reason = error.strerror or "it is no file"
        if error.errno == errno.ELOOP:
            reason = "it is a link"
        raise _unusable(lock, reason) from None
    with opened as file:
        if not _flocked(file):
            pid = file.read(32).strip() or "unknown"
            reason = f"already running at {path} (pid {pid})"
            raise Busy(reason, "stop it or choose another --socket")
        found = os.fstat(file.fileno())
        is_own = found.st_uid in (0, os.geteuid())
        if not is_own or not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise _unusable(lock, "it is a link, or another user's")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _unusable(lock: Path, reason: str) -> ConfigError:
    return ConfigError(f"cannot write {lock} ({reason})", "remove it or choose another --socket")


def _flocked(file: IO[str]) -> bool:
    for _ in range(TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(TRY_PAUSE)
    return False
