"""Addresses: which may be listened at or connected to, and which need keys."""

import contextlib
import errno
import ipaddress
import re
import socket
from urllib.parse import urlsplit

from specmesh.errors import ConfigError, NotThereYet


def is_loopback(host: str) -> bool:
    """Return True for localhost or a loopback address.

    Only programs of this machine can be at the other end. A tunnel counts as one.
    """
    if host == "localhost":
        return True
    try:
        return _plain(host.strip("[]")).is_loopback
    except ValueError:
        return False


_AUTHORITY = re.compile(
    r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII | re.IGNORECASE
)
_PAGE = re.compile(r"https?://(.+)", re.ASCII | re.IGNORECASE)


def is_own_host(authority: str) -> bool:
    """Return True if HOST or HOST:PORT of a header can only be this machine.

    That is localhost, a loopback address, or 0.0.0.0 or [::], which systems connect to loopback.
    Other parts, such as a user or a zone, are not allowed.
    """
    found = _AUTHORITY.fullmatch(authority)
    if found is None or int(found[2] or 0) >= 2**16:
        return False
    host = found[1].lower()
    if is_loopback(host):
        return True
    try:
        return _plain(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_own_page(origin: str) -> bool:
    """Return True if an Origin header is that of a page which this machine serves."""
    found = _PAGE.fullmatch(origin)
    return found is not None and is_own_host(found[1])


def endpoint(address: str) -> tuple[str, int | None]:
    """Return host and port of tcp://HOST:PORT; a port of None if it is missing or no number."""
    host = ""
    port = None
    with contextlib.suppress(ValueError):
        parts = urlsplit(address)
        host = parts.hostname or ""
        port = parts.port
    return host, port


def is_web_address(text: str) -> bool:
    """Return True for a URL that a client may ask by HTTP."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in text


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


ABSENT = (errno.EADDRNOTAVAIL, errno.ENODEV)
"""Errors of an address that no interface has, and of an interface that is missing or has none."""


def listen(host: str, port: int, option: str) -> socket.socket:
    """Return a TCP socket that listens at this address.

    Raises NotThereYet if no interface has the address, else ConfigError that names the option.
    """
    try:
        return socket.create_server((host, port), family=_family(host))
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # Python names the address again
        failure = f"cannot listen at {bracketed(host)}:{port} ({reason})"
        if error.errno in ABSENT:
            raise NotThereYet(failure, f"name an address of this machine by {option}") from None
        raise ConfigError(f"{failure}: is the port taken? Choose another {option}") from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def check_present(number: str, option: str) -> None:
    """Raise NotThereYet if no interface has the number; an interface's own name passes."""
    with socket.socket(_family(number), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((number, 0))
        except OSError as error:
            if error.errno in ABSENT:
                reason = f"{option}: no interface of this machine has {number}"
                raise NotThereYet(reason, "name an address of this machine") from None


def is_free_port(address: str) -> bool:
    """Return True for tcp://HOST:*, which is any port that is free."""
    return address.endswith(":*")


def host_of(address: str, option: str, *, free_port: bool = False) -> str:
    """Return the host of tcp://HOST:PORT. Raises ConfigError that names the option.

    free_port: PORT may be *.
    """
    host, port = endpoint(address)
    is_tcp = address.lower().startswith("tcp://")
    has_port = bool(port) or (free_port and is_free_port(address))
    if not is_tcp or not has_port or not may_be_host(host):
        remedy = "write tcp://HOST:PORT, like tcp://127.0.0.1:7071"
        raise ConfigError(f"{option} {address!r} is not an address", remedy)
    return host


_LABEL = re.compile(r"[\w-]{1,63}")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII | re.IGNORECASE)


def may_be_host(host: str) -> bool:
    """Return True for a possible number, name or interface, present or not, and for *."""
    labels = host.removesuffix(".").split(".")
    if host == "*" or _is_number(host):
        return True
    if all(map(_NUMBER.fullmatch, labels)):
        return _is_old_number(host)
    return len(host) <= 253 and all(map(_LABEL.fullmatch, labels))


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_old_number(host: str) -> bool:
    """Return True for an IPv4 address as inet_aton reads it, such as 127.1."""
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return True


def check_one_network(address: str, option: str, *, free_port: bool = False) -> str:
    """Return the host to listen at. Raises ConfigError if that would be on every network.

    free_port: PORT may be *.
    """
    host = host_of(address, option, free_port=free_port)
    if means_everywhere(host):
        reason = f"{option} {address} would listen on every network"
        raise ConfigError(reason, "name the one address to listen on")
    return host


def check_bind(address: str, *, keyed: bool, insecure: bool, free_port: bool = False) -> None:
    """Raise ConfigError if a verifier may not listen at this address.

    It may never listen on every network, and beyond loopback only with keys, or with `insecure` if
    its user wants none. free_port: PORT may be *.
    """
    host = check_one_network(address, "--bind", free_port=free_port)
    if keyed or insecure or is_loopback(host):
        return
    raise ConfigError(
        f"--bind {address} listens beyond this machine, and without keys the wire is not encrypted",
        "run `specmesh pair` here and on the drafter's machine (or `specmesh keys new`); or bind "
        "tcp://127.0.0.1:PORT behind an SSH tunnel; or add --insecure-no-auth on a network whose "
        "every member you trust",
    )


def check_connect(address: str, *, keyed: bool, insecure: bool) -> None:
    """Raise ConfigError if a drafter may not connect to this address.

    Beyond loopback it may connect only to a verifier whose key it knows, or with `insecure` if its
    user wants no keys.
    """
    host = host_of(address, "--connect")
    if keyed or insecure or is_loopback(host):
        return
    raise ConfigError(
        f"--connect {address} leads beyond this machine, and no key is known for that verifier",
        "run `specmesh pair` there and then here (or `specmesh keys new` and `specmesh keys allow "
        f"KEY --verifier {address}`); or add --insecure-no-auth on a network whose every member "
        "you trust",
    )


def check_rpc(address: str, option: str, *, insecure: bool) -> None:
    """Raise ConfigError if llama.cpp's RPC may not be used or served at HOST:PORT.

    It has no keys and no encryption. So it is allowed beyond loopback only with `insecure`, if its
    user trusts the wire, and never on every network.
    """
    host, _, port = address.rpartition(":")
    is_port = port.isdecimal() and 0 < int(port) < 2**16
    if not host or ":" in host or not is_port:
        reason = f"{option} {address!r} is not an address"
        raise ConfigError(reason, "write HOST:PORT, like 127.0.0.1:50052")
    if is_loopback(host):
        return
    if means_everywhere(host):
        raise ConfigError(f"{option} {address} means every network", "name one address")
    if not insecure:
        raise ConfigError(
            f"{option} {address} is beyond this machine, and llama.cpp's RPC has neither keys nor "
            "encryption: whoever reaches it or is in between reads and changes weights and texts, "
            "and may take the machine over. Put an SSH tunnel in between and name 127.0.0.1:PORT, "
            "or add --insecure-rpc on a wire that is yours alone",
        )


def means_everywhere(host: str) -> bool:
    """Return True if binding this host would listen on all networks: *, 0.0.0.0, 0, [::], ...

    A name is looked up before it is bound, and then its numbers are checked.
    """
    if host == "*":
        return True
    try:
        return _plain(host).is_unspecified
    except ValueError:
        return _is_old_number(host) and not any(socket.inet_aton(host))


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address without its zone, and one of IPv4 not as one of IPv6.

    Raises ValueError for a text that is no address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
