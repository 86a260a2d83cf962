"""Where the daemons' local sockets live, each with a lock for one daemon, and models.

Light: a daemon takes its lock before it imports what takes long.
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

from specmesh.errors import Busy, ConfigError

MAX_SOCKET_PATH = (
    103  # longest path, in bytes, that every platform's sun_path can hold (macOS: 104 with its NUL)
)
SYSTEM_DIR = Path("/run/specmesh" if sys.platform == "linux" else "/var/run/specmesh")
ROLES = ("verifier", "drafter")


def user_runtime_dir() -> Path:
    """This user's folder for sockets; it may not exist yet."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/specmesh/run"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "specmesh"
    pam = Path(
        f"/run/user/{os.getuid()}"
    )  # pam_systemd's folder may exist without the variable (sudo, cron)
    return pam / "specmesh" if pam.is_dir() else Path.home() / ".cache/specmesh/run"


def default_socket(role: str) -> Path:
    return user_runtime_dir() / f"{role}.sock"


def lock_of(path: Path) -> Path:
    """What a daemon locks from before its socket is there until after it has gone."""
    return Path(f"{path}.lock")


def candidate_sockets() -> list[Path]:
    """Where a client looks, in order: the user's verifier and drafter, then the system's."""
    return [
        folder / f"{role}.sock" for folder in (user_runtime_dir(), SYSTEM_DIR) for role in ROLES
    ]


def bundled(name: str) -> str:
    """The path of a model that comes with specmesh: target.gguf, drafter.gguf or drafter-hf."""
    return str(Path(__file__).parent / "models" / name)


def expanded(path: str | os.PathLike[str]) -> str:
    """Return a path with its user's home in the place of ~: no shell has read a file of
    settings, or a variable."""
    return os.path.expanduser(path)  # noqa: PTH111 - Path's own raises where nobody knows the user


def models_dir() -> Path:
    """Where downloaded models lie: SPECMESH_MODELS_DIR, else in the platform's cache folder."""
    chosen = os.environ.get("SPECMESH_MODELS_DIR")
    if chosen:
        return Path(expanded(chosen))
    from platformdirs import user_cache_path

    return user_cache_path("specmesh") / "models"


def config_folders() -> list[Path]:
    """Where files of settings are looked for: the user's folder, then the system's."""
    from platformdirs import user_config_path

    system = Path(
        "/Library/Application Support/specmesh" if sys.platform == "darwin" else "/etc/specmesh"
    )
    return [user_config_path("specmesh"), system]


def check_socket_path(path: Path) -> None:
    """Raise ConfigError where the path is too long for a socket, or none."""
    if path.name in ("", ".."):
        raise ConfigError(
            f"--socket {path} is no file's name", "give one in a folder of yours, or leave it out"
        )
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        what = f"the socket path {path} has {size} bytes, {MAX_SOCKET_PATH} at most"
        raise ConfigError(what, "give another --socket")


def prepare_folder(path: Path) -> None:
    """Make the folder of a socket, for this user alone where it is new. Raise ConfigError where it
    cannot be made, or where others could put a socket of theirs in the place of ours."""
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        why = _open_to_others(folder)
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder {folder} for the socket: {error.strerror}"
        ) from None
    if why:
        remedy = f"run `chmod go-w {folder}` if it is yours, or choose another --socket"
        raise ConfigError(f"the folder {folder} for the socket is not safe ({why})", remedy)


def _open_to_others(folder: Path) -> str:
    """Return why others may replace what a folder holds, "" where they may not. In a sticky one,
    such as /tmp, only the owner of a file may. A group that is one user's own, as many systems have
    it, has no others."""
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "it is a link"
    if found.st_uid not in (0, os.geteuid()):
        return "it is another user's"
    if found.st_mode & stat.S_ISVTX:
        return ""
    by_group = found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
    return "others may write there" if by_group or found.st_mode & stat.S_IWOTH else ""


def _is_own_group(number: int) -> bool:
    """Return whether a group has this user's name and no other members."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:  # without a name, as in a container, it may have any members
        return False
    return group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def read_text(path: Path, limit: int, what: str) -> str:
    """Return the text of a file that a person wrote; raise ConfigError where it is none, or has more bytes."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
        if len(raw) > limit:
            raise ConfigError(f"{path}: longer than {limit} bytes: is this {what}?")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror})", "name a readable file"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8", "save the file as UTF-8 text") from None


def write_whole(
    path: Path, raw: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Write a file whole or not at all, whatever interrupts, and its folder. Raises OSError."""
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


TRIES, TRY_PAUSE = (
    5,
    0.02,
)  # and seconds between them: a client that looks for a daemon holds the lock for a moment too


@contextmanager
def instance_lock(path: Path) -> Generator[None]:
    """Hold the lock beside a socket: one daemon per socket path, also after a crash (flock, not a pid file). While it
    is held clients know that a daemon is starting there, see `specmesh.client`. Its file stays. Raises Busy where
    another one holds it, ConfigError where it cannot be written."""
    check_socket_path(path)
    prepare_folder(path)
    lock = lock_of(path)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.fdopen(os.open(lock, flags, 0o600), "r+", errors="replace")
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror or "it is no file"
        raise _unusable(lock, why) from None
    with opened as file:
        if not _flocked(file):
            pid = file.read(32).strip() or "unknown"
            raise Busy(
                f"already running at {path} (pid {pid})", "stop it or choose another --socket"
            )
        found = os.fstat(file.fileno())
        if (
            not stat.S_ISREG(found.st_mode)
            or found.st_nlink > 1
            or found.st_uid not in (0, os.geteuid())
        ):
            raise _unusable(lock, "it is a link, or another user's")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _unusable(lock: Path, why: str) -> ConfigError:
    return ConfigError(f"cannot write {lock} ({why})", "remove it or choose another --socket")


def _flocked(file: IO[str]) -> bool:
    for _ in range(TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(TRY_PAUSE)
    return False
