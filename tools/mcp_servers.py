"""The published MCP servers whose tools are collected: those of mcp_servers.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KEY = "0123456789abcdef0123456789abcdef"
"""A made-up key."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server in an npm package.

    spec: of the package, as npm installs it: NAME@VERSION.
    arguments: HOME is the server's empty home.
    command: if its name is not the package's.
    """

    spec: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    command: str = ""

    @property
    def package(self) -> str:
        """Return the package without its version."""
        return self.spec.rpartition("@")[0]

    @property
    def version(self) -> str:
        """Return the version of the package."""
        return self.spec.rpartition("@")[2]

    @property
    def name(self) -> str:
        """Return a file name for its list of tools."""
        return self.package.removeprefix("@").replace("/", "-")


def servers() -> list[Server]:
    """Return the servers of mcp_servers.toml."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    found = list[Server]()
    for entry in tomllib.loads(text.replace('KEY"', f'{KEY}"'))["servers"]:
        entry["arguments"] = tuple(entry.get("arguments", ()))
        found.append(Server(**entry))
    return found
