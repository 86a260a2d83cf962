"""Daemons as processes for the end-to-end tests."""

from meshes import daemon, logs, mesh, pair, proxy, role, served, server, shared

__all__ = ["daemon", "logs", "mesh", "pair", "proxy", "role", "served", "server", "shared"]
