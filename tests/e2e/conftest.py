"""Daemons as processes for the end-to-end tests."""

from meshes import beside, daemon, logs, mesh, pair, proxy, role, served, server, shared

__all__ = [
    "beside",
    "daemon",
    "logs",
    "mesh",
    "pair",
    "proxy",
    "role",
    "served",
    "server",
    "shared",
]
