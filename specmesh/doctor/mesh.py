"""Checks of the mesh: settings, running daemons, keys, and whether machines reach each other."""

import errno
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specmesh import __version__, paths
from specmesh.cli.config import command_of, effective, read
from specmesh.cli.status import Found, way_to
from specmesh.client import Fields, printable
from specmesh.config import parse_port
from specmesh.doctor import Check, fail, ok, warn
from specmesh.errors import BadVariable, ConfigError, InsecureKeys
from specmesh.paths import ROLES
from specmesh.security import Way, endpoint
from specmesh.security.keys import Listing, find_keys

CONNECT_TIMEOUT_S = 2.0

MACOS_NO_ROUTE = 65
"""EHOSTUNREACH on macOS: also what a program gets that may not use the local network."""

_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, MACOS_NO_ROUTE, 51}  # 51: ENETUNREACH on macOS

_PRIVACY = (
    "System Settings > Privacy & Security > Local Network: allow what starts specmesh (the terminal, Python); launchd "
    "jobs may get no prompt: give the verifier's tailnet address to --connect instead"
)

# --- settings


@dataclass(frozen=True, slots=True)
class RoleSettings:
    role: str
    values: Mapping[str, object]

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return "" if value is None else str(value)

    def texts(self, key: str) -> list[str]:
        value = self.values.get(key)
        return [str(one) for one in value] if isinstance(value, list) else [text for text in [self.text(key)] if text]


def in_force() -> tuple[list[RoleSettings], list[Check]]:
    """Return the settings of each daemon that has some, and a failed check for each wrong environment."""
    found, wrong = list[RoleSettings](), list[Check]()
    for role in ROLES:
        try:
            values = effective(role)
        except BadVariable as error:
            look = f"env | grep {str(error).split('=')[0]}"
            wrong.append(fail(f"{role}'s environment", str(error), look))
            continue
        except ConfigError:
            continue  # its file's check says so
        if any(origin != "default" for _, origin in values.values()):
            found.append(RoleSettings(role, {key: value for key, (value, _) in values.items()}))
    return found, wrong


def files() -> list[Check]:
    told: list[Check] = []
    for role in ROLES:
        there = [path for folder in paths.config_folders() if (path := folder / f"{role}.toml").is_file()]
        told += [_file(role, path, there[0]) for path in there]
    return told or [ok("files", "none: flags and defaults hold")]


def _file(role: str, path: Path, first: Path) -> Check:
    name = f"{role}.toml"
    try:
        keys = len(read(path, command_of(role)).values)
    except ConfigError as error:
        place = re.match(r"(.+?):(\d+): ", str(error))
        edit = f"${{EDITOR:-vi}} +{place[2]} {path}" if place else f"chmod u+r {path}"
        return fail(name, str(error), edit)
    told = f"{path} sets {keys} of the settings"
    return ok(name, told if path == first else f"{told}; {first} goes before it")


def ports(roles: Iterable[RoleSettings]) -> Iterator[Check]:
    for one in roles:
        name, http, keys = f"{one.role}'s port", one.text("http"), one.text("api-key-file")
        try:
            port = parse_port(http or None, Path(keys) if keys else None)
        except ConfigError as error:
            yield fail(name, str(error), f"specmesh config show {one.role} --origin")
            continue
        if port is not None:
            count = len(port.keys.current)
            yield ok(name, f"{http}, {count or 'no'} key{'s' * (count != 1)}")


# --- daemons


def daemons(found: Iterable[Found]) -> list[Check]:
    start = "specmesh verifier --model FILE  # or: specmesh drafter --connect tcp://HOST:7071"
    return [judge_daemon(one) for one in found] or [warn("running", "none", start)]


def judge_daemon(one: Found) -> Check:
    name, stats = one.role, one.fields
    if one.state == "does not answer":
        told = f"takes connections at {one.socket} and does not answer"
        return fail(name, told, f"kill $(cat '{one.socket}.lock')  # and see its log")
    if one.state == "starting":
        return ok(name, f"at {one.socket}, starting")
    pid = stats.text("pid")
    told = f"{f'pid {pid}' if pid else f'at {one.socket}'}, {printable(one.model or one.state)}"
    if backend := stats.text("model", "backend"):
        told += f" on {backend}"
    if (version := stats.text("version")) != __version__:
        told += f", of version {version or 'unknown'}; installed is {__version__}"
        return warn(name, told, f"specmesh service restart {name}  # or stop and start it by hand")
    if stats.number("loading") is not None:
        return ok(name, told)
    if name == "drafter" and not stats.part("verifier").raw:
        return warn(name, f"{told}, has no verifier", "specmesh stats  # and see below: network")
    if name == "verifier" and not stats.parts("peers"):
        return warn(name, f"{told}, has no drafter", "specmesh drafter --connect tcp://HOST:7071")
    if stats.text("vocabulary", "verdict") == "partial":
        fix = "specmesh doctor --model SMALL --against BIG  # find a draft model of the same family"
        return warn(name, f"{told}, whose vocabulary fits its verifier's in part", fix)
    return ok(name, told)


# --- keys


def keys() -> list[Check]:
    folder = find_keys(None)
    if folder is None:
        return [ok("keys", "none: the wire works on this machine, and through tunnels")]
    try:
        folder.identity()
        drafters, verifiers = (len(folder.entries(listing)) for listing in Listing)
    except InsecureKeys as error:
        return [fail("keys", str(error), "what the line above says, then look again")]
    except ConfigError as error:
        return [fail("keys", str(error), f"specmesh keys list --keys {folder.path}")]
    told = f"{folder.path}: {drafters} drafter{'s' * (drafters != 1)} allowed"
    return [ok("keys", f"{told}, {verifiers} verifier{'s' * (verifiers != 1)} known")]


# --- network


def network(settings: Sequence[RoleSettings], found: Iterable[Found]) -> list[Check]:
    running = [one.fields for one in found if one.state == "running"]
    addresses = _addresses(settings, running)
    attached = {end.text("address"): bool(end.text("name")) for stats in running for end in stats.parts("verifiers")}
    told = [
        judge_reach(address, _connect(address), way_to(address), attached.get(address))
        for role, address in addresses
        if role == "drafter"
    ]
    wires = [judge_wire(*one, way_to(one[1]), _encrypted(*one, settings, running)) for one in addresses]
    told += [wire for wire in wires if wire is not None]
    told += [check for stats in running for check in _links(stats)]
    return told or [ok("addresses", "nothing is set up or runs at an address beyond this machine")]


def judge_reach(
    address: str, error: Exception | None, kind: Way, attached: bool | None, macos: bool = sys.platform == "darwin"
) -> Check:
    """Judge whether a verifier can be reached. error: what connecting to it raised.

    attached: a running drafter has it; None if none runs.
    """
    name, told, (host, port) = "verifier", f"{address} ({kind})", endpoint(address)
    private = macos and kind is Way.LOCAL
    match error:
        case None if attached is False:
            fix = _PRIVACY if private else "specmesh stats  # and its log"
            return warn(name, f"{told} answers from here, but the running drafter has no verifier", fix)
        case None:
            return ok(name, f"{told} answers")
        case socket.gaierror():
            fix = f"ping {host}  # or put the verifier's IP address into drafter.toml: connect = ..."
            found = "its name is not found"
        case ConnectionRefusedError():
            fix = f"specmesh verifier --bind tcp://ADDRESS:{port}  # on {host}; or open the tunnel that ends here"
            found = "refuses connections"
        case TimeoutError():
            found, fix = "does not answer", f"ping {host}  # is it on? does its firewall let port {port} in?"
        case OSError(errno=code) if private and code == MACOS_NO_ROUTE:
            found, fix = "there is no route to it (errno 65): macOS keeps programs from the local network", _PRIVACY
        case OSError(errno=code) if code in _NO_ROUTE:
            found, fix = "there is no route to it", f"ping {host}  # is this machine in its network, the VPN up?"
        case OSError():
            found, fix = "cannot be reached", f"nc -vz {host} {port}"
        case _:
            fix = "specmesh config show drafter --origin  # connect must be tcp://HOST:PORT"
            found = "is no address"
    return fail(name, f"{told} {found}", fix)


def judge_wire(role: str, address: str, kind: Way, encrypted: bool) -> Check | None:
    """Judge whether others could read along; None for a link within this machine."""
    name, told = f"{role}'s wire", f"{address} ({kind})"
    if encrypted:
        return ok(name, f"{told}: encrypted, for allowed keys only")
    if kind is Way.SAME_MACHINE:
        return None
    if kind is Way.TAILNET:
        return ok(name, f"{told}: encrypted by the tailnet, which all its members can reach")
    fix = "specmesh keys new  # on both machines, and allow the drafter's on the verifier's"
    return warn(name, f"{told}: prompts and texts cross it unencrypted", fix)


def _links(stats: Fields) -> Iterator[Check]:
    for peer in (*stats.parts("verifiers"), *stats.parts("peers")):
        if name := peer.text("name") or peer.text("drafter"):
            p50, p99 = (peer.number("round_trip_ms", key) for key in ("p50", "p99"))
            found = "no round trip was measured yet"
            if p50 is not None and p99 is not None:
                found = f"round trip p50 {p50:.3g} ms, p99 {p99:.3g} ms, jitter {p99 - p50:.3g} ms"
            yield ok(f"link to {name}", found)


def _addresses(settings: Iterable[RoleSettings], running: Iterable[Fields]) -> list[tuple[str, str]]:
    keys = {"verifier": "bind", "drafter": "connect"}
    found = [(one.role, address) for one in settings for address in one.texts(keys[one.role])]
    for stats in running:
        found += [(stats.text("role"), end.text("address")) for end in stats.parts("verifiers") or [stats]]
    return [(role, address) for role, address in dict.fromkeys(found) if address]


def _encrypted(role: str, address: str, settings: Iterable[RoleSettings], running: Iterable[Fields]) -> bool:
    """Return True if keys are used for this address, by a running daemon or else by the settings."""
    for stats in running:
        for end in (stats, *stats.parts("verifiers")):
            if (stats.text("role"), end.text("address")) == (role, address):
                return bool(end.raw.get("encrypted"))
    one = next(one for one in settings if one.role == role)
    named = one.text("keys")
    try:
        return one.text("insecure-no-auth") != "True" and find_keys(Path(named) if named else None) is not None
    except ConfigError:
        return False  # the group of keys says so


def _connect(address: str) -> Exception | None:
    """Connect to an address and disconnect; return what that raised."""
    host, port = endpoint(address)
    if not (host and port):
        return ValueError(address)
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return error
    return None
