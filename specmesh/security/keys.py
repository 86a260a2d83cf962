"""A folder of keys: this machine's own, of drafters that it lets in, of verifiers that it trusts.

secret.key  this machine's secret key, Curve25519 in 64 hexadecimal digits
drafters    keys that may connect to a verifier of this machine: KEY NAME, one per line
verifiers   keys that a drafter of this machine trusts: KEY ADDRESS, one per line; a key may have
            several addresses

Only their owner may read and write them. The lists are no secret, but a writer could add itself.
"""

import errno
import fcntl
import os
import re
import shlex
import stat
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from specmesh.errors import ConfigError, InsecureKeys, NotThereYet
from specmesh.paths import config_folders, write_whole
from specmesh.security.addresses import endpoint, host_of, is_loopback

MAX_KEY_FILE_BYTES = 2**20
_FIRST_PERSON = 1000  # user ids below are those of services (SYS_UID_MAX of login.defs)
SECRET = "secret.key"  # noqa: S105  (a file's name)
KEY = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[^\s#]\S{0,254}")


class Listing(StrEnum):
    """The lists of a folder. The label of a key is a drafter's name, or a verifier's address."""

    DRAFTERS = "drafters"
    VERIFIERS = "verifiers"

    def same(self, one: str, other: str) -> bool:
        """Return True if two labels mean the same, however an address is spelt."""
        if self is Listing.VERIFIERS:
            return endpoint(one) == endpoint(other)
        return one == other


@dataclass(frozen=True, slots=True)
class Identity:
    public: bytes
    secret: bytes = field(repr=False)


def new_identity() -> Identity:
    import zmq  # noqa: PLC0415 - commands that make no key start without it
    from zmq.utils import z85  # noqa: PLC0415

    public, secret = zmq.curve_keypair()
    return Identity(z85.decode(public), z85.decode(secret))


def key_folders() -> list[Path]:
    """Return the usual folders of keys: the user's, then the system's."""
    return [folder / "keys" for folder in config_folders()]


def find_keys(named: Path | None) -> "KeyFolder | None":
    """Return the folder `named`, or the first usual one with a key; None without any.

    Raises ConfigError if the folder named has no key, NotThereYet if the folder is missing or
    empty, as a disk is before it is mounted, InsecureKeys if this user may not look.
    """
    if named is not None:
        if not KeyFolder(named).has_key():
            reason = f"--keys {named}: no key is there"
            remedy = f"make one with `specmesh keys new --keys {named}`"
            if _may_come(named):
                raise NotThereYet(reason, remedy)
            raise ConfigError(reason, remedy)
        return KeyFolder(named)
    user, system = map(KeyFolder, key_folders())
    if user.has_key():
        return user
    if os.geteuid() >= _FIRST_PERSON and not os.path.lexists(system.path / SECRET):
        return None  # keys that a person may not look for belong to another user
    return system if system.has_key() else None


def _may_come(folder: Path) -> bool:
    """Return True if a folder is missing, or empty as the place of a disk."""
    try:
        return not any(folder.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers, without empty lines and comments."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def parse_key(text: str) -> str:
    key = text.strip().lower()
    if not KEY.fullmatch(key):
        remedy = "give the 64 hexadecimal digits that `specmesh keys show` prints there"
        raise ConfigError(f"{text!r} is no key", remedy)
    return key


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """The keys in a folder.

    Files that other users can read, or could have written, are refused with InsecureKeys.
    """

    path: Path

    def new(self, *, replace: bool = False, owner: tuple[int, int] | None = None) -> Identity:
        """Create this machine's key, and its folder if it is missing.

        owner: user and group id of the folder. Raises ConfigError if there is a key and not
        `replace`, or it cannot be written.
        """
        try:
            if not self.path.exists():
                self.path.mkdir(mode=0o700, parents=True)
                if owner is not None:
                    os.chown(self.path, *owner)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be made ({error.strerror})") from None
        identity = new_identity()
        with self._changing():
            if not replace and self.has_key():
                raise ConfigError(
                    f"{self.path / SECRET} is there already: `specmesh keys show` prints its "
                    "public key; --force makes another, which every peer must then be told"
                )
            comment = (
                "# The secret key of this machine for specmesh: "
                "whoever has it passes for this machine."
            )
            self._store(SECRET, f"{comment}\n{identity.secret.hex()}\n")
        return identity

    def has_key(self) -> bool:
        return self._read(SECRET) is not None

    def identity(self) -> Identity:
        import zmq  # noqa: PLC0415
        from zmq.utils import z85  # noqa: PLC0415

        path = self.path / SECRET
        raw = self._read(SECRET)
        if raw is None:
            raise ConfigError(f"{path}: no key is there", "make one with `specmesh keys new`")
        lines = [line for _, line in _lines(raw)]
        if len(lines) != 1 or not KEY.fullmatch(lines[0]):
            remedy = "make another with `specmesh keys new --force`"
            raise ConfigError(f"{path} holds no key", remedy)
        secret = bytes.fromhex(lines[0])
        return Identity(z85.decode(zmq.curve_public(z85.encode(secret))), secret)

    def listed(self, listing: Listing) -> dict[str, str]:
        """Return the names by their keys, or one of the addresses by each verifier's key."""
        return dict(self.entries(listing))

    def entries(self, listing: Listing) -> list[tuple[str, str]]:
        """Return the entries of a list: (key, name or address); none without a list."""
        found: list[tuple[str, str]] = []
        for number, line in _lines(self._read(listing) or ""):
            key, _, rest = line.partition(" ")
            label = rest.strip()
            if not KEY.fullmatch(key) or not _LABEL.fullmatch(label):
                place = f"{self.path / listing}:{number}"
                raise ConfigError(place, "write the 64 digits of a key, a space and a name")
            found.append((key, label))
        return found

    def stamp(self, name: str) -> tuple[int, ...]:
        """Return a stamp that changes with a list, or SECRET.

        It reads only the file's entry in the file system.
        """
        try:
            found = (self.path / name).stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)

    def verifier_at(self, address: str) -> bytes | None:
        """Return the public key that the verifier at an address must prove, if it is known.

        It is the key listed for the address, or our own for an address of this machine.
        """
        for key, known in self.entries(Listing.VERIFIERS):
            if Listing.VERIFIERS.same(known, address):
                return bytes.fromhex(key)
        if is_loopback(host_of(address, "--connect")):
            return self.identity().public
        return None

    def allow(self, listing: Listing, key: str, label: str, *, replace: bool = False) -> None:
        """Put a key on a list under a label.

        A label has one key. A drafter's key has one name. A verifier's key may have several
        addresses. Raises ConfigError if another key has the label and not `replace`.
        """
        if not _LABEL.fullmatch(label):
            raise ConfigError(f"{label!r} is no name", "give one word")
        entries = [(key, label)]
        with self._changing():
            for other_key, other_label in self.entries(listing):
                if listing.same(other_label, label):
                    if other_key != key and not replace:
                        remedy = f"`specmesh keys revoke {label}` first, or give another name"
                        raise ConfigError(f"{label} has another key: {remedy}")
                elif other_key != key or listing is not Listing.DRAFTERS:
                    entries.append((other_key, other_label))
            self._write(listing, entries)

    def revoke(self, word: str) -> list[tuple[Listing, str]]:
        """Remove a key, given itself or one of its labels, from all lists.

        Return the list and the label of each removed entry.
        """
        removed: list[tuple[Listing, str]] = []
        with self._changing():
            for listing in Listing:
                entries = self.entries(listing)
                revoked = {key for key, label in entries if word in (key, label)}
                kept = list[tuple[str, str]]()
                for key, label in entries:
                    if key in revoked:
                        removed.append((listing, label))
                    else:
                        kept.append((key, label))
                if revoked:
                    self._write(listing, kept)
        return removed

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Hold off other writers, so that a change is read, made and written as one."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            hint = "is it yours?"
            if error.errno == errno.ENOENT:
                hint = "make a key first, with `specmesh keys new`"
            raise ConfigError(f"{self.path} cannot be opened ({error.strerror})", hint) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, listing: Listing, found: Iterable[tuple[str, str]]) -> None:
        entries = sorted(found, key=lambda entry: entry[1].lower())
        lines = [f"{key} {label}\n" for key, label in entries]
        self._store(listing, "".join(lines))

    def _store(self, name: str, text: str) -> None:
        """Replace a file as a whole: readers find the old or the new one."""
        try:
            folder = self.path.stat()
            owner = None
            if os.geteuid() == 0:  # the service must be able to read the file
                owner = (folder.st_uid, folder.st_gid)
            write_whole(self.path / name, text.encode(), owner=owner)
        except OSError as error:
            raise ConfigError(f"{self.path / name} cannot be written ({error.strerror})") from None

    def _read(self, name: str) -> str | None:
        """Return the text of a file, if there is one."""
        path = self.path / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                reason = f"{path} is a symbolic link"
                raise InsecureKeys(reason, "put the file itself there") from None
            reason = f"{path} cannot be read ({error.strerror}); if it is yours"
            remedy = f"sudo chown -R {os.geteuid()} {shlex.quote(str(self.path))}"
            raise InsecureKeys(reason, remedy) from None
        with os.fdopen(descriptor, "rb") as file:
            folder = self.path.stat()
            _require_safe(self.path, folder, folder.st_uid, forbidden=0o022)
            _require_safe(path, os.fstat(file.fileno()), folder.st_uid, forbidden=0o077)
            raw = file.read(MAX_KEY_FILE_BYTES + 1)
        if len(raw) > MAX_KEY_FILE_BYTES:
            size = f"longer than {MAX_KEY_FILE_BYTES} bytes"
            raise ConfigError(f"{path} is {size}: is this a file of keys?")
        return raw.decode("utf-8", "replace")


def _require_safe(path: Path, found: os.stat_result, owner: int, *, forbidden: int) -> None:
    """Raise InsecureKeys for a file or folder that other users may use.

    Root may read files of the folder's `owner`.
    """
    quoted = shlex.quote(str(path))
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise InsecureKeys(f"{path} is no regular file", "put the file itself there")
    ours = {0, os.geteuid()}
    if os.geteuid() == 0:
        ours.add(owner)
    if found.st_uid not in ours:
        remedy = f"sudo chown {os.geteuid()} {quoted}"
        raise InsecureKeys(f"{path} belongs to user {found.st_uid}", remedy)
    if found.st_mode & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        right = "700" if stat.S_ISDIR(found.st_mode) else "600"
        raise InsecureKeys(f"{path} is open to others (mode {mode:04o})", f"chmod {right} {quoted}")
