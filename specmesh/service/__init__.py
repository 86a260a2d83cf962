"""`specmesh service`: the daemons as services of systemd or launchd."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specmesh.errors import ConfigError, EngineError
from specmesh.paths import write_whole

Command = tuple[str, ...]
"""A program and its arguments."""


class Scope(StrEnum):
    """Whose service it is: one of the user that is logged in, or the machine's own."""

    USER = "user"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class File:
    """A file to write. kept: it holds what a person may have changed, so it is written only where there is none."""

    path: Path
    text: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Service:
    """A daemon as a service.

    files: the unit or job, and the settings. shared: of both daemons' services, removed with the last one; `other`
    exists while the other has one. Installing runs prepare, reload and enable, uninstalling reload. unload runs before
    `start` and `restart`, and may fail.
    """

    name: str
    files: tuple[File, File]
    shared: tuple[File | Path, ...]
    other: Path
    unload: tuple[Command, ...]
    uninstalled: tuple[Command, ...]
    start: tuple[Command, ...]
    restart: tuple[Command, ...]
    stop: tuple[Command, ...]
    status: Command
    logs: Command
    prepare: tuple[Command, ...] = ()
    reload: tuple[Command, ...] = ()
    enable: tuple[Command, ...] = ()

    @property
    def settings(self) -> Path:
        return self.files[1].path


@dataclass(frozen=True, slots=True)
class ServiceInstaller:
    """Carries a plan out. dry: only says what it would do. root: files lie under it, and no command is run."""

    say: Callable[[str], None]
    dry: bool = False
    root: Path | None = None

    def install(self, service: Service) -> None:
        """Write what differs and tell the manager, also where nothing does: it may not have heard the last time.

        Raises ConfigError where something cannot be written, EngineError where the manager refuses.
        """
        files = [*service.files, *(one for one in service.shared if isinstance(one, File))]
        if not [file for file in files if self._write(file)]:
            self.say(f"{service.name} is installed already: nothing to change")
        self.run([*service.prepare, *service.reload, *service.enable])

    def start(self, unload: Sequence[Command], start: Sequence[Command]) -> None:
        self.run(unload, may_fail=True)
        self.run(start)

    def uninstall(self, service: Service) -> None:
        """Stop it and remove everything that it had; what is not there is no error."""
        self.run(service.uninstalled, may_fail=True)
        for file in service.files:
            self._remove(self.at(file.path))
        if not self.at(service.other).exists():
            for one in service.shared:
                self._remove(self.at(one.path if isinstance(one, File) else one))
        folder = self.at(service.settings.parent)
        if folder.is_dir() and not any(folder.iterdir()):
            self._remove(folder)
        self.run(service.reload, may_fail=True)

    def run(self, commands: Sequence[Command], *, may_fail: bool = False) -> None:
        for command in commands:
            self.say("$ " + " ".join(command))
            if self.dry or self.root is not None:
                continue
            try:
                done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own
            except FileNotFoundError:
                raise ConfigError(f"{command[0]} is not here: services need systemd or launchd") from None
            if not done.returncode:
                continue
            why = done.stderr.strip() or done.stdout.strip()
            if "Failed to connect to bus" in why:
                raise EngineError(
                    "there is no systemd for this user here (no login session, or a container): log in as this user, "
                    "use --system, or start the daemon by hand: `specmesh service install --dry-run` shows how"
                )
            if not may_fail:
                raise EngineError(f"{' '.join(command)} failed: {why}")
            self.say(f"  it said: {why}")

    def at(self, path: Path) -> Path:
        """Where a path of the plan lies."""
        return path if self.root is None else self.root / path.relative_to("/")

    def _write(self, file: File) -> bool:
        path = self.at(file.path)
        try:
            if path.exists() and (file.kept or path.read_text(encoding="utf-8") == file.text):
                return False
            self.say(f"write {path}")
            if self.dry:
                self.say(file.text)
                return True
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, file.text.encode(), 0o644)  # the service's own user reads it, whatever root's umask is
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"{path} cannot be written ({why}): --system needs root, use sudo") from None
        return True

    def _remove(self, path: Path) -> None:
        if not path.exists() and not path.is_symlink():
            return
        self.say(f"remove {path}")
        if self.dry:
            return
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)  # safe where somebody else may write in it
            else:
                path.unlink()
        except OSError as error:
            raise ConfigError(f"{path} cannot be removed ({error.strerror})") from None
