"""The key that systemd hands to the service, found by what the units say."""

from pathlib import Path

import pytest

from specmesh.errors import ConfigError
from specmesh.service.systemd import parse_units, service_credential

UNIT = "# /etc/systemd/system/specmesh-verifier.service\n[Service]\nType=notify\nUser=specmesh\n"
KEY = "LoadCredential=specmesh.key:/etc/specmesh/secret.key\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        (UNIT, None),
        (UNIT + KEY, "/etc/specmesh/secret.key"),
        (UNIT + "LoadCredential=api-keys:/etc/specmesh/api-keys\n", None),
        (UNIT + KEY + "LoadCredential=api-keys:/etc/specmesh/api-keys\n", "/etc/specmesh/secret.key"),
        (UNIT + KEY + "LoadCredential=\n", None),
        (UNIT + KEY + "LoadCredential = specmesh.key:/etc/other\n", "/etc/other"),
        (UNIT + "#" + KEY, None),
        (UNIT + "LoadCredentialEncrypted=api-keys:/a\n", None),
    ],
)
def test_what_the_units_say(text: str, found: str | None):
    assert parse_units(text) == (None if found is None else Path(found))


@pytest.mark.parametrize(
    "line", ["LoadCredentialEncrypted=specmesh.key:/etc/specmesh/secret.cred", "LoadCredential=specmesh.key:elsewhere"]
)
def test_what_only_systemd_can_read(line: str):
    """Another key must not be made in its stead."""
    with pytest.raises(ConfigError, match="only systemd can read"):
        parse_units(UNIT + line + "\n")


def test_through_systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert service_credential() is None
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\n[ $1 = cat ] && echo '{KEY.strip()}'\n")
    program.chmod(0o755)
    assert service_credential() == Path("/etc/specmesh/secret.key")
