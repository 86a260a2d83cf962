"""The daemons as systemd units, rendered from the templates in systemd/."""

import grp
import re
import stat
import subprocess
import sys
from importlib import resources
from pathlib import Path

import specmesh
from specmesh.errors import ConfigError
from specmesh.paths import config_folders
from specmesh.security.keys import CREDENTIAL
from specmesh.service import Command, File, Scope, Service

TEMPLATES = resources.files("specmesh.systemd")

_HIDDEN = ("/home", "/root", "/run/user")  # by ProtectHome
_FLEETING = ("/tmp", "/var/tmp")  # noqa: S108 - hidden by PrivateTmp, removed at a restart
_GPU_GROUPS = {"render", "video"}


def systemd_service(role: str, scope: Scope, settings: str) -> Service:
    """A daemon as a unit; `settings` is the file of settings to begin with."""
    name = f"specmesh-{role}"
    system = scope is Scope.SYSTEM
    config = (Path("/etc/specmesh") if system else config_folders()[0]) / f"{role}.toml"
    units = Path("/etc/systemd/system") if system else Path.home() / ".config/systemd/user"
    control: Command = ("systemctl",) if system else ("systemctl", "--user")
    forgiven: Command = (*control, "reset-failed", name)  # a person's starts count towards StartLimitBurst too
    prepare: tuple[Command, ...] = ()
    shared: list[File | Path] = []
    if system:
        users = File(Path("/etc/sysusers.d/specmesh.conf"), (TEMPLATES / "sysusers.conf").read_text(encoding="utf-8"))
        shared = [users, Path("/run/specmesh"), Path("/var/lib/specmesh"), Path("/var/cache/specmesh")]
        prepare = (("systemd-sysusers", str(users.path)),)
    other = "drafter" if role == "verifier" else "verifier"
    return Service(
        name=name,
        files=(File(units / f"{name}.service", unit(role, scope, config)), File(config, settings, kept=True)),
        shared=tuple(shared),
        other=units / f"specmesh-{other}.service",
        prepare=prepare,
        reload=((*control, "daemon-reload"),),
        enable=((*control, "enable", name),),
        unload=(forgiven,),
        uninstalled=((*control, "stop", name), forgiven, (*control, "disable", name)),
        start=((*control, "start", name),),
        restart=((*control, "restart", name),),
        stop=((*control, "stop", name),),
        status=(*control, "status", "--no-pager", name),
        logs=("journalctl", *(() if system else ("--user",)), "--unit", name, "--no-pager", "--lines", "200"),
    )


def unit(role: str, scope: Scope, config: Path) -> str:
    values = {
        "ROLE": role,
        "COMMAND": f"{quoted(sys.executable, program=True)} -P -m specmesh",
        "CONFIG": str(config),
        "CONFIG_ARGUMENT": quoted(str(config)),
        "HOME": _protect_home(),
        "GROUPS": " ".join(sorted(_GPU_GROUPS & {group.gr_name for group in grp.getgrall()})),
    }
    text = (TEMPLATES / f"{scope}.service").read_text(encoding="utf-8")
    rendered = re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text)
    return rendered.replace("SupplementaryGroups=\n", "")


def check_visible() -> list[str]:
    """Return what keeps the system's service from running this Python. Raise ConfigError if it never can from here."""
    told = []
    for path in _needed():
        if path.startswith(tuple(f"{folder}/" for folder in _FLEETING)):
            raise ConfigError(
                f"specmesh lies in {path}, which a service of the system does not see and a restart removes: install "
                "it where it stays, with python3 -m venv /opt/specmesh, and run `service install` from there"
            )
        hidden = path.startswith(tuple(f"{folder}/" for folder in _HIDDEN))  # it alone is put back then
        closed = [one for one in (Path(path), *(() if hidden else Path(path).parents)) if not _open_to_all(one)]
        told += [f"the user specmesh may not look into {one}: chmod o+rx '{one}'" for one in closed]
    return list(dict.fromkeys(told))


def quoted(argument: str, program: bool = False) -> str:
    """Quote an argument for ExecStart, see systemd.service(5). In the first word systemd expands no variables."""
    plain = argument.replace("%", "%%")
    plain = plain if program else plain.replace("$", "$$")
    if re.fullmatch(r"[\w@+=:,./%$-]+", plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _protect_home() -> str:
    """`yes`, or where Python itself lies in a home: nothing of homes but Python."""
    inside = [path for path in _needed() if path.startswith(tuple(f"{hidden}/" for hidden in _HIDDEN))]
    if not inside:
        return "yes"
    paths = (quoted(path.replace(":", "\\:"), program=True) for path in inside)
    return f"tmpfs\nBindReadOnlyPaths={' '.join(paths)}"


def _needed() -> list[str]:
    """Folders without which this Python does not run."""
    source = Path(specmesh.__file__).resolve().parents[1]  # in a checkout of its own, where it is installed editable
    python = Path(sys.executable).resolve().parents[1]
    return list(dict.fromkeys([sys.prefix, sys.base_prefix, str(python), str(source)]))


def _open_to_all(folder: Path) -> bool:
    """Whether any user may go through it; a folder that is not there is somebody else's trouble."""
    try:
        return bool(folder.stat().st_mode & stat.S_IXOTH)
    except FileNotFoundError:
        return True


_SETTING = re.compile(r"^LoadCredential(Encrypted)?[ \t]*=[ \t]*(\S*)", re.MULTILINE)

_UNITS = ("specmesh-verifier", "specmesh-drafter")


def service_credential() -> Path | None:
    """The file that a unit's LoadCredential= names; None where none does. Raises ConfigError where it is encrypted."""
    try:
        ran = subprocess.run(  # noqa: S603
            ["systemctl", "cat", *_UNITS],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_units(ran.stdout)


def parse_units(text: str) -> Path | None:
    """The same out of what `systemctl cat` prints: the last setting counts, an empty one takes back those before it."""
    found: tuple[bool, str] | None = None
    for encrypted, value in _SETTING.findall(text):
        name, _, path = value.partition(":")
        if not value:
            found = None
        elif name == CREDENTIAL:
            found = bool(encrypted), path
    if found is None:
        return None
    encrypted, path = found
    if encrypted or not path.startswith("/"):
        raise ConfigError(
            f"the service's key is the credential {path}, which only systemd can read: name the folder with the key it "
            "was made of by --keys"
        )
    return Path(path)
