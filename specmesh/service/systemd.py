"""The daemons as systemd units, rendered from the templates in systemd/."""

import grp
import re
import sys
from pathlib import Path

import specmesh
from specmesh.config_file import config_folders
from specmesh.service.plan import Command, File, Scope, Service

TEMPLATES = Path(__file__).parents[1] / "systemd"

_HIDDEN = ("/home", "/root", "/run/user")
"""What ProtectHome hides."""

_GPU_GROUPS = ("render", "video")


def systemd_service(role: str, scope: Scope, settings: str) -> Service:
    """A daemon as a unit; `settings` is the file of settings to begin with."""
    name = f"specmesh-{role}"
    system = scope is Scope.SYSTEM
    config = (Path("/etc/specmesh") if system else config_folders()[0]) / f"{role}.toml"
    units = Path("/etc/systemd/system") if system else Path.home() / ".config/systemd/user"
    control: Command = ("systemctl",) if system else ("systemctl", "--user")
    files = (File(units / f"{name}.service", unit(role, scope, config)), File(config, settings, kept=True))
    prepare: tuple[Command, ...] = ()
    shared: list[File | Path] = []
    if system:
        users = File(Path("/etc/sysusers.d/specmesh.conf"), (TEMPLATES / "sysusers.conf").read_text(encoding="utf-8"))
        shared = [users, Path("/run/specmesh"), Path("/var/lib/specmesh"), Path("/var/cache/specmesh")]
        prepare = (("systemd-sysusers", str(users.path)),)
    other = "drafter" if role == "verifier" else "verifier"
    return Service(
        name=name,
        files=files,
        settings=config,
        shared=tuple(shared),
        other=units / f"specmesh-{other}.service",
        empties=(config.parent,),
        prepare=prepare,
        reload=((*control, "daemon-reload"),),
        enable=((*control, "enable", name),),
        unload=(),
        uninstalled=((*control, "disable", "--now", name),),
        start=((*control, "start", name),),
        stop=((*control, "stop", name),),
        status=(*control, "status", "--no-pager", name),
        logs=("journalctl", *(() if system else ("--user",)), "--unit", name, "--no-pager", "--lines", "200"),
    )


def unit(role: str, scope: Scope, config: Path) -> str:
    """The unit's text."""
    values = {
        "ROLE": role,
        "COMMAND": f"{quoted(sys.executable, program=True)} -P -m specmesh",
        "CONFIG": str(config),
        "CONFIG_ARGUMENT": quoted(str(config)),
        "HOME": _protect_home(),
        "GROUPS": " ".join(group for group in _GPU_GROUPS if _exists(group)),
    }
    text = (TEMPLATES / f"{scope}.service").read_text(encoding="utf-8")
    rendered = re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text)
    return rendered.replace("SupplementaryGroups=\n", "")


def quoted(argument: str, program: bool = False) -> str:
    """An argument as ExecStart takes it, see systemd.service(5): quotes, and no specifiers or variables.

    In the program's own path, the first word, systemd looks for no variables.
    """
    plain = argument.replace("%", "%%")
    plain = plain if program else plain.replace("$", "$$")
    if re.fullmatch(r"[\w@+=:,./%$-]+", plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _protect_home() -> str:
    """`yes`, or where Python itself lies in a home: nothing of homes but Python."""
    source = Path(specmesh.__file__).resolve().parents[1]  # in a checkout of its own, where it is installed editable
    python = Path(sys.executable).resolve().parents[1]
    needed = dict.fromkeys([sys.prefix, sys.base_prefix, str(python), str(source)])
    inside = [path for path in needed if path.startswith(tuple(f"{hidden}/" for hidden in _HIDDEN))]
    if not inside:
        return "yes"
    paths = (quoted(path.replace(":", "\\:"), program=True) for path in inside)
    return f"tmpfs\nBindReadOnlyPaths={' '.join(paths)}"


def _exists(group: str) -> bool:
    try:
        grp.getgrnam(group)
    except KeyError:
        return False
    return True
