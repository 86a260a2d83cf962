"""A real browser for the tests of the page: Chromium, driven by Playwright."""

import os
import shutil
from contextlib import contextmanager
from importlib.util import find_spec

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
REQUIRED = bool(os.environ.get("REQUIRE_BROWSER"))
"""Set where the tests of the page must not be left out."""


def missing():
    """Return why the page cannot be tested here; "" if it can."""
    lacks = []
    if find_spec("playwright") is None:
        lacks.append("Playwright (pip install playwright)")
    if not CHROMIUM:
        lacks.append("Chromium (apt-get install chromium)")
    if not lacks:
        return ""
    return f"the page was not tested in a browser: there is no {' and no '.join(lacks)}"


@contextmanager
def chromium():
    """Run a browser without a window."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        # its sandbox needs another user than root, who runs the tests in a container
        args = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=args)
        yield browser
        browser.close()
