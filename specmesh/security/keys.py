"""A folder of keys: this machine's own, of drafters that it lets in, of verifiers that it trusts.

secret.key  this machine's secret key, Curve25519 in 64 hexadecimal digits
drafters    who may connect to a verifier here: KEY NAME, one per line
verifiers   whom a drafter here trusts: KEY ADDRESS, one per line; a key may have several addresses

Only their owner may read and write them. The lists are no secret, but whoever writes them lets himself in.
"""

import errno
import fcntl
import os
import re
import shlex
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from specmesh.errors import ConfigError, InsecureKeys
from specmesh.paths import config_folders, write_whole
from specmesh.security import endpoint, host_of, is_loopback

MAX_KEY_FILE_BYTES = 2**20
_FIRST_PERSON = 1000  # user ids below are those of services (SYS_UID_MAX of login.defs)
SECRET = "secret.key"  # noqa: S105  (a file's name)
KEY = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[^\s#]\S{0,254}")


class Listing(StrEnum):
    """The lists of a folder; what stands behind a key is a drafter's name, or a verifier's address."""

    DRAFTERS = "drafters"
    VERIFIERS = "verifiers"

    def same(self, one: str, other: str) -> bool:
        """Whether two labels mean the same, however an address is spelt."""
        return endpoint(one) == endpoint(other) if self is Listing.VERIFIERS else one == other


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
    """Where keys are looked for: the user's folder, then the system's."""
    return [folder / "keys" for folder in config_folders()]


def find_keys(named: Path | None) -> "KeyFolder | None":
    """Return the folder `named`, or the first usual one with a key; None if there is none. Raise ConfigError if the
    folder named has no key, InsecureKeys if this user may not look."""
    if named is not None:
        if not KeyFolder(named).has_key():
            raise ConfigError(
                f"--keys {named}: no key is there",
                f"make one with `specmesh keys new --keys {named}`",
            )
        return KeyFolder(named)
    user, system = map(KeyFolder, key_folders())
    if user.has_key():
        return user
    if os.geteuid() >= _FIRST_PERSON and not os.path.lexists(system.path / SECRET):
        return None  # for a person keys that it may not look for are somebody else's
    return system if system.has_key() else None


def parse_key(text: str) -> str:
    key = text.strip().lower()
    if not KEY.fullmatch(key):
        remedy = "give the 64 hexadecimal digits that `specmesh keys show` prints there"
        raise ConfigError(f"{text!r} is no key", remedy)
    return key


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """The keys in a folder. What others could read or have written is refused with InsecureKeys."""

    path: Path

    def new(self, *, replace: bool = False, owner: tuple[int, int] | None = None) -> Identity:
        """Create this machine's key and, where it is missing, its folder, owned by `owner` (user and group id). Raise
        ConfigError if there is a key and not `replace`, or it cannot be written."""
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
                    f"{self.path / SECRET} is there already: `specmesh keys show` prints its public key; "
                    "--force makes another, which every peer must then be told"
                )
            text = "# The secret key of this machine for specmesh: whoever has it passes for this machine.\n"
            self._store(SECRET, text + identity.secret.hex() + "\n")
        return identity

    def has_key(self) -> bool:
        return self._read(SECRET) is not None

    def identity(self) -> Identity:
        import zmq  # noqa: PLC0415
        from zmq.utils import z85  # noqa: PLC0415

        path, raw = self.path / SECRET, self._read(SECRET)
        if raw is None:
            raise ConfigError(f"{path}: no key is there", "make one with `specmesh keys new`")
        lines = [
            line.strip() for line in raw.splitlines() if line.strip() and not line.startswith("#")
        ]
        if len(lines) != 1 or not KEY.fullmatch(lines[0]):
            raise ConfigError(
                f"{path} holds no key", "make another with `specmesh keys new --force`"
            )
        secret = bytes.fromhex(lines[0])
        return Identity(z85.decode(zmq.curve_public(z85.encode(secret))), secret)

    def listed(self, listing: Listing) -> dict[str, str]:
        """Names by their keys, or of each verifier's key one of its addresses."""
        return dict(self.entries(listing))

    def entries(self, listing: Listing) -> list[tuple[str, str]]:
        """What a list holds: (key, name or address); empty where there is no list."""
        found: list[tuple[str, str]] = []
        for number, line in enumerate((self._read(listing) or "").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            key, _, label = line.strip().partition(" ")
            if not KEY.fullmatch(key) or not _LABEL.fullmatch(label.strip()):
                raise ConfigError(
                    f"{self.path / listing}:{number}",
                    "write the 64 digits of a key, a space and a name",
                )
            found.append((key, label.strip()))
        return found

    def stamp(self, name: str) -> tuple[int, ...]:
        """Changes when a list, or SECRET, does; asks the file system only for its entry."""
        try:
            found = (self.path / name).stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)

    def verifier_at(self, address: str) -> bytes | None:
        """Return the public key that the verifier at an address must prove: the one listed for it, else our own on this
        machine; None if neither is known."""
        for key, known in self.entries(Listing.VERIFIERS):
            if Listing.VERIFIERS.same(known, address):
                return bytes.fromhex(key)
        return self.identity().public if is_loopback(host_of(address, "--connect")) else None

    def allow(self, listing: Listing, key: str, label: str, *, replace: bool = False) -> None:
        """Put a key on a list under a label. Raise ConfigError if the label is another key's and not `replace`. A label
        has one key. A drafter's key has one name; a verifier's may have several addresses."""
        if not _LABEL.fullmatch(label):
            raise ConfigError(f"{label!r} is no name", "give one word")
        with self._changing():
            found = self.entries(listing)
            if not replace and any(
                listing.same(known, label) and other != key for other, known in found
            ):
                why = f"{label} has another key: `specmesh keys revoke {label}` first, or give another name"
                raise ConfigError(why)
            kept = [(other, known) for other, known in found if not listing.same(known, label)]
            if listing is Listing.DRAFTERS:
                kept = [entry for entry in kept if entry[0] != key]
            self._write(listing, [(key, label), *kept])

    def revoke(self, word: str) -> list[tuple[Listing, str]]:
        """Remove a key, given itself or one of its labels, from all lists; return (list, label) of each entry."""
        gone: list[tuple[Listing, str]] = []
        with self._changing():
            for listing in Listing:
                found = self.entries(listing)
                meant = {key for key, label in found if word in (key, label)}
                if meant:
                    gone += [(listing, label) for key, label in found if key in meant]
                    self._write(listing, [entry for entry in found if entry[0] not in meant])
        return gone

    @contextmanager
    def _changing(self) -> Generator[None]:
        """One writer at a time: a change is read, made and written as one."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            hint = (
                "make a key first, with `specmesh keys new`"
                if error.errno == errno.ENOENT
                else "is it yours?"
            )
            raise ConfigError(f"{self.path} cannot be opened ({error.strerror})", hint) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, listing: Listing, found: Iterable[tuple[str, str]]) -> None:
        lines = [
            f"{key} {label}\n" for key, label in sorted(found, key=lambda entry: entry[1].lower())
        ]
        self._store(listing, "".join(lines))

    def _store(self, name: str, text: str) -> None:
        """Replace a file as a whole: who reads it finds the old or the new one."""
        try:
            folder = self.path.stat()
            # The service reads what root writes for it.
            owner = (folder.st_uid, folder.st_gid) if os.geteuid() == 0 else None
            write_whole(self.path / name, text.encode(), owner=owner)
        except OSError as error:
            raise ConfigError(f"{self.path / name} cannot be written ({error.strerror})") from None

    def _read(self, name: str) -> str | None:
        """A file's text; None where there is none."""
        path = self.path / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise InsecureKeys(
                    f"{path} is a symbolic link", "put the file itself there"
                ) from None
            mend = f"sudo chown -R {os.geteuid()} {shlex.quote(str(self.path))}"
            raise InsecureKeys(
                f"{path} cannot be read ({error.strerror}); if it is yours", mend
            ) from None
        with os.fdopen(descriptor, "rb") as file:
            folder = self.path.stat()
            _require_safe(self.path, folder, folder.st_uid, forbidden=0o022)
            _require_safe(path, os.fstat(file.fileno()), folder.st_uid, forbidden=0o077)
            raw = file.read(MAX_KEY_FILE_BYTES + 1)
        if len(raw) > MAX_KEY_FILE_BYTES:
            raise ConfigError(
                f"{path} is longer than {MAX_KEY_FILE_BYTES} bytes: is this a file of keys?"
            )
        return raw.decode("utf-8", "replace")


def _require_safe(path: Path, found: os.stat_result, owner: int, *, forbidden: int) -> None:
    """Raise InsecureKeys for what is not ours alone. Root may read what belongs to the folder's `owner`."""
    quoted = shlex.quote(str(path))
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise InsecureKeys(f"{path} is no regular file", "put the file itself there")
    ours = {0, os.geteuid()} | ({owner} if os.geteuid() == 0 else set[int]())
    if found.st_uid not in ours:
        raise InsecureKeys(
            f"{path} belongs to user {found.st_uid}", f"sudo chown {os.geteuid()} {quoted}"
        )
    if found.st_mode & forbidden:
        mode, right = stat.S_IMODE(found.st_mode), "700" if stat.S_ISDIR(found.st_mode) else "600"
        raise InsecureKeys(f"{path} is open to others (mode {mode:04o})", f"chmod {right} {quoted}")
