"""Real models in real daemons. `make models` fetches the models."""

import pytest
import real_models
from meshes import beside, logs, mesh, role, shared

__all__ = ["beside", "logs", "mesh", "role", "shared"]


@pytest.fixture(scope="session", autouse=True)
def _models():
    """Fail each test, with one sentence, if a model is missing: a skipped test would hide it."""
    missing = [name for name in real_models.NAMES if not (real_models.folder() / name).exists()]
    if missing:
        names = ", ".join(missing)
        pytest.fail(f"{names} not in {real_models.folder()}: run `make models`", pytrace=False)
