"""`specmesh models`, and what a daemon's --model means."""

import re

import click

from specmesh.cli.options import json_option, print_result, table
from specmesh.errors import ConfigError
from specmesh.paths import models_dir

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def model_path(value: str | None, engine: str) -> str | None:
    """Return the path of a model by its name in `models list`, or by path; or, for MLX, a hub id. `bundled` stays.
    Raises ConfigError where it is none of them."""
    if not value or value == "bundled" or engine in {"ngram", "sim"}:
        return value
    from specmesh.models import resolve

    try:
        return resolve(value, models_dir())
    except ConfigError:
        if engine in {"auto", "mlx"} and _HUB_ID.fullmatch(value):
            return value
        raise


@click.group()
def models() -> None:
    """Download GGUF models from the Hugging Face hub, and list them."""


@models.command()
@click.argument("hub_id")
@click.argument("file", required=False)
def pull(hub_id: str, file: str | None) -> None:
    """Download model HUB_ID (OWNER/NAME) and print its path; FILE names one of several GGUF files.

    An interrupted download continues where it stopped; checksums are verified. HF_TOKEN, HF_ENDPOINT and
    HF_HUB_OFFLINE mean what they mean to huggingface_hub.
    """
    try:
        from specmesh.models.pull import pull as get
    except ImportError as error:
        raise ConfigError('huggingface_hub is not installed: pip install "specmesh[hub]"') from error
    click.echo(get(hub_id, file, models_dir().absolute()))


@models.command("list")
@json_option
def list_(json: bool) -> None:
    """List the models in the folder SPECMESH_MODELS_DIR (default: in specmesh's cache). --model takes their names."""
    from specmesh.models import entries

    folder = models_dir().absolute()
    found = [entry._asdict() | {"path": str(entry.path)} for entry in entries(folder)]
    lines = table(found) if found else [f"no models in {folder}: `specmesh models pull` gets them"]
    print_result({"schema_version": 1, "folder": str(folder), "models": found}, lines, as_json=json)
