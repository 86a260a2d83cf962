"""The secret key of the wire, where systemd hands it to the machine's own service."""

import re
import subprocess
from pathlib import Path

from specmesh.errors import ConfigError
from specmesh.security.keys import CREDENTIAL

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
