"""Verifiers in the local network, by DNS service discovery: announced and found, never trusted for it.

What is found is somebody's word. It is shown to people, who pair the two machines by a code; nothing is connected to,
and no key believed, because it was announced here. The library zeroconf is an extra, imported where it is used.
"""

import asyncio
import hashlib
import socket
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from specmesh.errors import ConfigError
from specmesh.snapshot import printable
from specmesh.wire.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    import zeroconf

SERVICE = "_specmesh._tcp.local."
MAX_TEXT = 200
"""Most characters that are taken of anything announced; a TXT string holds 255 bytes."""

MOST = 64
"""Most verifiers that are listed."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A verifier, as it says. key: the fingerprint of its public key, empty where it has none."""

    name: str
    model: str
    host: str
    port: int
    key: str = ""
    protocol: int = PROTOCOL_VERSION

    @property
    def address(self) -> str:
        """What --connect takes."""
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    def as_json(self) -> dict[str, object]:
        """One of the verifiers in --json."""
        return {**asdict(self), "address": self.address}


def fingerprint(public: bytes) -> str:
    """A public key, shortened for people to compare."""
    return hashlib.sha256(public).hexdigest()[:16]


@contextmanager
def announced(told: Announcement) -> "Iterator[None]":
    """While the context is open others in the network of `told.host` can find it, from about a second after its
    beginning on: first it is asked whether another has the name. Raises ConfigError."""
    library, host = _library(), _resolved(told.host)
    text = {"model": told.model, "key": told.key, "protocol": str(told.protocol)}
    label = f"{told.name.replace('.', '-')[:50]}-{told.port}"  # a DNS label has 63 bytes
    info = library.ServiceInfo(
        SERVICE,
        f"{label}.{SERVICE}",
        addresses=[_packed(host)],
        port=told.port,
        properties={name: _cut(value) for name, value in text.items()},
        server=f"{label}.local.",
    )
    try:
        mesh = library.Zeroconf(interfaces=[host])
    except OSError as error:
        raise ConfigError(f"--announce: {host} cannot be announced at ({error.strerror})", "announce") from None
    try:
        assert mesh.loop is not None, "its thread runs"
        asyncio.run_coroutine_threadsafe(mesh.async_register_service(info, allow_name_change=True), mesh.loop)
        yield
    finally:
        mesh.close()  # says goodbye for what was registered


def find(seconds: float, interfaces: Sequence[str] | None = None) -> list[Announcement]:
    """The verifiers that answer within so many seconds, by their names; on all networks, or those of the addresses
    given. Raises ConfigError."""
    library = _library()
    names: set[str] = set()
    try:
        mesh = library.Zeroconf(interfaces=list(interfaces) if interfaces else library.InterfaceChoice.All)
    except OSError as error:
        raise ConfigError(f"no network can be asked ({error.strerror})") from None

    def heard(**event: object) -> None:
        if event["state_change"] is not library.ServiceStateChange.Removed:
            names.add(str(event["name"]))

    try:
        library.ServiceBrowser(mesh, SERVICE, handlers=[heard])
        time.sleep(seconds)
        found = [mesh.get_service_info(SERVICE, name, 1000) for name in sorted(names)[:MOST]]
    finally:
        mesh.close()
    told = [announcement for info in found if info is not None and (announcement := _told(info)) is not None]
    return sorted(told, key=lambda one: (one.name, one.address))


def _told(info: "zeroconf.ServiceInfo") -> Announcement | None:
    """What was announced, as far as it can be one; it is a stranger's."""
    addresses, text = info.parsed_addresses(), info.properties
    if not addresses or not info.port:
        return None
    protocol = _text(text.get(b"protocol"))
    return Announcement(
        printable(info.name.removesuffix(f".{SERVICE}"))[:MAX_TEXT],
        _text(text.get(b"model")),
        addresses[0],
        info.port,
        _text(text.get(b"key")),
        int(protocol) if protocol.isascii() and protocol.isdecimal() and len(protocol) < 4 else 0,
    )


def _text(value: bytes | None) -> str:
    return printable((value or b"").decode("utf-8", "replace"))[:MAX_TEXT]


def _cut(value: str) -> bytes:
    """What a TXT string can hold of it."""
    return value.encode()[:MAX_TEXT].decode("utf-8", "ignore").encode()


def _resolved(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        raise ConfigError(f"--announce: {host} is no address of this machine", "announce") from None


def _packed(host: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)


def _library() -> "ModuleType":
    try:
        import zeroconf
    except ImportError:
        raise ConfigError("discovery needs the library zeroconf: pip install 'specmesh[discovery]'") from None
    return zeroconf
