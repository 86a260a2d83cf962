"""The `specmesh` command."""

from specmesh.cli.main import main

__all__ = ["main"]
