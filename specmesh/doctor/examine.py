"""All checks, group by group."""

from typing import TYPE_CHECKING

from specmesh.cli import status as ps
from specmesh.doctor import daemons, keys, models, network, services, settings, sockets, software
from specmesh.doctor.check import Check

if TYPE_CHECKING:
    import click


def examine(root: "click.Context") -> list[Check]:
    """Look at everything; takes a second or two. `root`: the command line's own context, which knows the settings."""
    (in_force, wrong), running = settings.in_force(root), ps.find()
    return [
        *software.checks(),
        *models.checks(in_force),
        *settings.checks(root),
        *wrong,
        *settings.ports(in_force),
        *sockets.checks(),
        *daemons.checks(running),
        *services.checks(),
        *keys.checks(),
        *network.checks(in_force, running),
    ]
