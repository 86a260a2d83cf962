"""Sockets: whose folders they lie in, whether paths fit, and what a dead daemon left behind."""

import grp
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from specmesh.client import known_sockets, listens
from specmesh.doctor.check import Check, fail, ok, warn
from specmesh.paths import MAX_SOCKET_PATH, ROLES, SYSTEM_DIR, default_socket, user_runtime_dir

GROUP = "sockets"


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """A folder for sockets.

    mode: its permission bits; owner, me: user ids. error: why it cannot be looked at. group: whose members may look
    into it, where this user may not.
    """

    path: Path
    there: bool
    is_folder: bool = True
    owner: int = 0
    me: int = 0
    mode: int = 0o700
    error: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """Something where a daemon's socket belongs. listens: whether a daemon answers there."""

    path: Path
    is_socket: bool
    listens: bool
    mode: int = 0o600


def checks() -> list[Check]:
    """Look at the user's folder, the system's where there is one, and the sockets in them."""
    user, system = _folder(user_runtime_dir()), _folder(SYSTEM_DIR)
    longest = max(len(os.fsencode(default_socket(role))) for role in ROLES)
    told = [judge_user_folder(user), judge_length(user.path, longest)]
    if system.there:
        told.append(judge_system_folder(system))
    return told + [judge_socket(facts) for facts in map(_socket, known_sockets()) if facts is not None]


def judge_user_folder(facts: FolderFacts) -> Check:
    """The folder of this user's sockets: private."""
    name, path = "user's folder", facts.path
    if not facts.there:
        return ok(GROUP, name, f"{path} is not there yet: the first daemon makes it")
    if facts.error is not None:
        return fail(GROUP, name, f"{path} cannot be read ({facts.error})", f"chmod 700 '{path}'")
    if not facts.is_folder:
        return fail(GROUP, name, f"{path} is no folder", f"rm '{path}'")
    if facts.owner != facts.me:
        told = f"{path} belongs to user {facts.owner}, not to {facts.me}"
        return fail(GROUP, name, told, f"sudo rm -r '{path}'")
    if facts.mode & 0o022:
        return fail(GROUP, name, f"{path} can be written by others (mode {facts.mode:o})", f"chmod 700 '{path}'")
    if facts.mode & 0o055:
        return warn(GROUP, name, f"{path} is open to others (mode {facts.mode:o})", f"chmod 700 '{path}'")
    return ok(GROUP, name, f"{path}, private")


def judge_system_folder(facts: FolderFacts) -> Check:
    """The folder of the machine's own daemons: its group may look, only its owner may write."""
    name, path = "system's folder", facts.path
    if facts.group is not None:
        told = f"{path} is closed to this user: what runs there is not seen"
        return warn(GROUP, name, told, f'sudo usermod --append --groups {facts.group} "$USER"  # and log in again')
    if facts.is_folder and not facts.mode & 0o002:
        return ok(GROUP, name, f"{path} (mode {facts.mode:o})")
    return fail(GROUP, name, f"{path} can be written by anybody (mode {facts.mode:o})", f"sudo chmod o-w '{path}'")


def judge_length(folder: Path, size: int) -> Check:
    """Whether the longest socket path fits; size: its bytes."""
    told = f"{size} bytes, {MAX_SOCKET_PATH} at most"
    if size > MAX_SOCKET_PATH:
        return fail(GROUP, "path length", f"{folder}: {told}", "export XDG_RUNTIME_DIR=/run/user/$(id -u)")
    return ok(GROUP, "path length", told)


def judge_socket(facts: SocketFacts) -> Check:
    """One socket."""
    name, path = facts.path.name, facts.path
    if not facts.is_socket:
        return fail(GROUP, name, f"{path} is no socket: a daemon cannot listen there", f"rm '{path}'")
    if not facts.listens:
        told = f"{path} was left behind by a daemon that is gone; the next one replaces it"
        return warn(GROUP, name, told, f"rm '{path}'")
    if facts.mode & 0o007:
        return fail(GROUP, name, f"{path} is open to everybody (mode {facts.mode:o})", f"chmod 600 '{path}'")
    return ok(GROUP, name, f"{path} takes connections")


def _folder(path: Path) -> FolderFacts:
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid == os.getuid():
            found = path.stat()  # a link of our own leads where we want; one of somebody else's is no folder
    except FileNotFoundError:
        return FolderFacts(path, there=False)
    except OSError as error:
        return FolderFacts(path, there=True, error=error.strerror or str(error))
    mode = stat.S_IMODE(found.st_mode)
    group = None if os.access(path, os.X_OK) else _group(found.st_gid)
    return FolderFacts(path, True, stat.S_ISDIR(found.st_mode), found.st_uid, os.getuid(), mode, group=group)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _socket(path: Path) -> SocketFacts | None:
    """What lies there; None for nothing, or nothing that we may see."""
    try:
        found = path.stat()
    except OSError:
        return None
    if not os.access(path, os.W_OK):
        return None  # another user's daemon: it cannot be told from a dead one
    return SocketFacts(path, stat.S_ISSOCK(found.st_mode), listens(path), stat.S_IMODE(found.st_mode))
