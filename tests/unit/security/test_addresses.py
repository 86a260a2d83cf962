"""What kind of way an address means, and which need keys."""

import socket

import pytest

from specmesh import security as addresses
from specmesh.errors import ConfigError
from specmesh.security import check_bind, check_connect, check_one_network, check_rpc

NAMED = {"everywhere": "0.0.0.0", "all-of-six": "::", "mapped": "::ffff:0.0.0.0"}  # noqa: S104
EVERYWHERE = ["*", "0.0.0.0", "0", "0.0", "0x0", "[::]", "[::0]", "[0:0:0:0:0:0:0:0]", "[::ffff:0.0.0.0]", *NAMED]  # noqa: S104
BEYOND = ["192.0.2.1", "example.org", "[2001:db8::1]", "[::ffff:192.168.1.5]", "eth0", "localhost.example.org"]


@pytest.mark.parametrize("host", EVERYWHERE)
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.fault("E6.68")
def test_never_on_every_network(host: str, keyed: bool, insecure: bool):
    with pytest.raises(ConfigError, match="every network"):
        check_bind(f"tcp://{host}:7071", keyed=keyed, insecure=insecure)
    with pytest.raises(ConfigError, match="every network"):
        check_one_network(f"tcp://{host}:7072", "--address")


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def lookup(host: str, port: None, flags: int = 0) -> object:
        return resolve(NAMED.get(host, host), port, flags=flags | socket.AI_NUMERICHOST)

    monkeypatch.setattr(addresses.socket, "getaddrinfo", lookup)


@pytest.mark.parametrize("host", BEYOND)
@pytest.mark.fault("E6.68")
def test_beyond_loopback_needs_keys_or_a_word(host: str):
    for check, option in ((check_bind, "--bind"), (check_connect, "--connect")):
        with pytest.raises(ConfigError, match=rf"{option}.*specmesh keys new.*--insecure-no-auth"):
            check(f"tcp://{host}:7071", keyed=False, insecure=False)
        check(f"tcp://{host}:7071", keyed=True, insecure=False)
        check(f"tcp://{host}:7071", keyed=False, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_loopback_needs_nothing(host: str):
    for check in (check_bind, check_connect):
        check(f"tcp://{host}:7071", keyed=False, insecure=False)
        check(f"tcp://{host}:7071", keyed=True, insecure=False)


@pytest.mark.parametrize("option", ["--rpc", "--bind"])
def test_rpc_has_no_keys(option: str):
    for insecure in (False, True):
        check_rpc("127.0.0.1:50052", option, insecure=insecure)
        check_rpc("localhost:50052", option, insecure=insecure)
        with pytest.raises(ConfigError, match=f"{option}.*every network"):
            check_rpc("0.0.0.0:50052", option, insecure=insecure)
    for host in ("192.0.2.1", "example.org"):
        check_rpc(f"{host}:50052", option, insecure=True)
        with pytest.raises(ConfigError, match=rf"{option} {host}.*neither keys nor encryption.*--insecure-rpc"):
            check_rpc(f"{host}:50052", option, insecure=False)


@pytest.mark.parametrize("address", ["", "box", "box:", ":1", "box:0", "box:65536", "box:x", "[::1]:1", "tcp://box:1"])
def test_no_address_for_rpc(address: str):
    """llama.cpp takes HOST:PORT with one colon, and ends the process over others."""
    with pytest.raises(ConfigError) as told:
        check_rpc(address, "--rpc", insecure=True)
    assert told.value.remedy == "write HOST:PORT, like 127.0.0.1:50052"
