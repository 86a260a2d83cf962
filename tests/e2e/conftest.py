"""Daemons as processes for the end-to-end tests."""

import pytest
from meshes import beside, logs, mesh, proxy, role, shared
from served import CONTEXT, PAGE, serve

__all__ = ["beside", "logs", "mesh", "proxy", "role", "shared"]


@pytest.fixture(scope="module")
def pair(shared):
    """A verifier and a drafter for tests that leave them as they are."""
    return {"verifier": shared.verifier(), "drafter": shared.drafter()}


@pytest.fixture(scope="module")
def served(shared):
    """Serve a verifier with a key and a page's origin, and a drafter with the origin, at ports."""
    return serve(shared, f"step_ms=1,n_ctx={CONTEXT}", "--allow-origin", PAGE)


@pytest.fixture
def daemon(role, pair):
    return pair[role]


@pytest.fixture
def server(role, served):
    return served[role]
