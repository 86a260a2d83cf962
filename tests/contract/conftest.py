"""What users and other programs build on: schemas recorded as golden files."""

from meshes import logs, mesh, proxy, role, shared

__all__ = ["logs", "mesh", "proxy", "role", "shared"]
