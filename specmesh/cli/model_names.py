"""What a shell offers for the beginning of a model's name.

A fault offers nothing: the user types on.
"""

from collections.abc import Iterable
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from specmesh.client import Client
from specmesh.core.fields import objects_at
from specmesh.errors import SpecmeshError
from specmesh.models.files import entries
from specmesh.paths import models_dir

COMPLETION_TIMEOUT_S = 0.5
"""Seconds that a daemon may take: a user who types does not wait for longer."""


def served_models(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the names of the models that the daemon of this command serves."""
    client = ctx.params.get("client")
    if not isinstance(client, Client):
        client = Client()
    client.timeout = COMPLETION_TIMEOUT_S
    with suppress(SpecmeshError):
        models = objects_at(client.get("/v1/models"), "data")
        return _beginning(begun, [str(model.get("id")) for model in models])
    return []


def local_models(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the names in `models list`, `bundled`, and an item that stands for any file."""
    return [CompletionItem(begun, type="file"), *_beginning(begun, ["bundled", *_downloaded()])]


def pulled_repositories(
    _ctx: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Return the hub ids from which models were pulled."""
    ids: dict[str, None] = {}
    for name in _downloaded():
        owner, _, rest = name.partition("/")
        repository, has_file, _ = rest.partition("/")
        if has_file:
            ids[f"{owner}/{repository}"] = None
    return _beginning(begun, ids)


def _downloaded() -> list[str]:
    with suppress(SpecmeshError, OSError):
        return [entry.name for entry in entries(models_dir())]
    return []


def _beginning(begun: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(begun)]
