"""What kind of way leads to an address: this machine, its network, a tailnet, or further."""

import ipaddress
from enum import StrEnum
from urllib.parse import urlsplit

_TAILNET = (ipaddress.ip_network("100.64.0.0/10"), ipaddress.ip_network("fd7a:115c:a1e0::/48"))
_LOCAL = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fe80::/10", "fc00::/7")
)


class Way(StrEnum):
    """Kinds of ways. The end of a tunnel is on this machine, wherever the tunnel leads."""

    SAME_MACHINE = "same machine"
    LOCAL = "local network"
    TAILNET = "tailnet"
    ROUTED = "routed"


def way(host: str) -> Way:
    """The way to an IP address, by its range alone; names other than localhost count as routed, so resolve them first.

    100.64.0.0/10 is the tailnet's here, as nobody runs a verifier behind a carrier's NAT of that range.
    """
    if host == "localhost":
        return Way.SAME_MACHINE
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return Way.ROUTED
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return Way.SAME_MACHINE
    if any(address in network for network in _TAILNET):  # before the others: its IPv6 range is one of fc00::/7
        return Way.TAILNET
    return Way.LOCAL if any(address in network for network in _LOCAL) else Way.ROUTED


def endpoint(address: str) -> tuple[str, int | None]:
    """Host and port of tcp://HOST:PORT; port None where there is none, or no number."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "", None
    try:
        return parts.hostname or "", parts.port
    except ValueError:
        return parts.hostname or "", None
