"""What kind of way an address means."""

import pytest

from specmesh.security.addresses import Way, endpoint, way


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("localhost", Way.SAME_MACHINE),
        ("127.0.0.1", Way.SAME_MACHINE),
        ("127.8.9.10", Way.SAME_MACHINE),
        ("::1", Way.SAME_MACHINE),
        ("[::1]", Way.SAME_MACHINE),
        ("::ffff:127.0.0.1", Way.SAME_MACHINE),
        ("10.0.0.1", Way.LOCAL),
        ("172.16.0.1", Way.LOCAL),
        ("172.31.255.255", Way.LOCAL),
        ("192.168.1.5", Way.LOCAL),
        ("169.254.7.7", Way.LOCAL),
        ("::ffff:192.168.1.5", Way.LOCAL),
        ("fe80::1", Way.LOCAL),
        ("fe80::1%en0", Way.LOCAL),
        ("fd00::1", Way.LOCAL),
        ("fd7a:115c:a1e1::1", Way.LOCAL),
        ("100.64.0.0", Way.TAILNET),
        ("100.127.255.255", Way.TAILNET),
        ("fd7a:115c:a1e0::1", Way.TAILNET),
        ("fd7a:115c:a1e0:ffff:ffff:ffff:ffff:ffff", Way.TAILNET),
        ("100.63.255.255", Way.ROUTED),
        ("100.128.0.0", Way.ROUTED),
        ("172.15.0.1", Way.ROUTED),
        ("172.32.0.1", Way.ROUTED),
        ("8.8.8.8", Way.ROUTED),
        ("2001:db8::1", Way.ROUTED),
        ("a.name.example", Way.ROUTED),
        ("", Way.ROUTED),
    ],
)
def test_way(host: str, kind: Way):
    assert way(host) is kind


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("tcp://127.0.0.1:7071", ("127.0.0.1", 7071)),
        ("tcp://[fd7a:115c:a1e0::1]:7071", ("fd7a:115c:a1e0::1", 7071)),
        ("tcp://bigbox", ("bigbox", None)),
        ("tcp://bigbox:port", ("bigbox", None)),
        ("nonsense", ("", None)),
    ],
)
def test_endpoint(address: str, parts: tuple[str, int | None]):
    assert endpoint(address) == parts
