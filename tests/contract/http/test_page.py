"""The page over HTTP: its headers, and who may have it."""

import asyncio
import re

import pytest
from asgi_calls import FakeDaemon, call, get

from specmesh.api.app import create_app
from specmesh.api.guard import guarded
from specmesh.api.page import FILES
from specmesh.config import Port
from specmesh.core.no_drafts import NoDrafts

POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
NAMES = sorted(path.name for path in FILES.iterdir() if path.name != "index.html")
PATHS = ["/", *(f"/page/{name}" for name in NAMES)]
KEYED = Port(host="127.0.0.1", port=80, keys=("sk-one",))
OPEN = Port(host="127.0.0.1", port=80)
each_path = pytest.mark.parametrize("path", PATHS)


def asked(port, path, method="GET", host=b"localhost"):
    daemon = FakeDaemon()
    app = guarded(create_app(daemon, daemon.kept), port)
    return asyncio.run(call(daemon, method, path, app=app, headers=((b"host", host),)))


@each_path
def test_headers(path):
    headers = get(FakeDaemon(), path).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"


@each_path
def test_a_browser_that_has_a_file_is_not_sent_it_again(path):
    daemon = FakeDaemon()
    tag = get(daemon, path).headers["etag"].encode()
    again = asyncio.run(call(daemon, "GET", path, headers=((b"if-none-match", tag),)))
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"].encode() == tag
    assert again.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("known", [("*",), ('"a"', "W/{tag}"), ('"a", {tag}',)])
def test_forms_of_what_a_browser_has(known):
    daemon = FakeDaemon()
    tag = get(daemon, "/").headers["etag"]
    headers = [(b"if-none-match", value.format(tag=tag).encode()) for value in known]
    assert asyncio.run(call(daemon, "GET", "/", headers=headers)).status == 304


@each_path
def test_it_needs_no_key(path):
    assert asked(KEYED, path).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/"),
        ("POST", "/page/main.js"),
        ("GET", "/stats"),
        ("GET", "/props"),
        ("GET", "/page"),
        ("GET", "//stats"),
        ("GET", "/v1/models"),
    ],
)
def test_all_else_needs_a_key(method, path):
    assert asked(KEYED, path, method).status == 401


@pytest.mark.parametrize(
    "path", ["/page/", "/page/page.py", "/page/../app.py", "/page/%2e%2e/app.py"]
)
def test_nothing_else_is_served_beside_it(path):
    assert asked(KEYED, path).status == 404


@each_path
def test_without_keys_other_hosts_are_refused(path):
    assert asked(OPEN, path, host=b"evil.example").status == 403


@pytest.mark.parametrize("reason", NoDrafts)
def test_each_reason_for_no_drafts_has_words(reason):
    assert f'"{reason}": "' in (FILES / "reasons.js").read_text()


@pytest.mark.parametrize("name", ["index.html", *NAMES])
def test_what_the_policy_forbids_is_not_used(name):
    """There are no styles or scripts in attributes, and nothing makes markup of text."""
    text = (FILES / name).read_text()
    wrong = (
        r"\bstyle=|\.style\b|\son\w+=|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\("
    )
    assert re.findall(wrong, text) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
