"""`specmesh models`: pull, list, inspect. Thin functions, like those of cli.py."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from specmesh.cli.options import print_json
from specmesh.errors import ConfigError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., object])

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def model_path(value: str | None, engine: str) -> str | None:
    """What a daemon's --model means: a name of `models list`, a path, or, to MLX, a hub id. `bundled` stays as it is.

    Raises ConfigError where it is none of them.
    """
    if not value or value == "bundled" or engine in {"ngram", "sim"}:
        return value
    from specmesh.model_store import resolve
    from specmesh.paths import models_dir

    try:
        return resolve(value, models_dir())
    except ConfigError:
        if engine in {"auto", "mlx"} and _HUB_ID.fullmatch(value):
            return value
        raise


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """What a shell offers behind --model: the names of the list, `bundled`, and files."""
    from click.shell_completion import CompletionItem

    from specmesh.model_store import entries
    from specmesh.paths import models_dir

    names = ["bundled", *(entry.name for entry in entries(models_dir().absolute()))]
    fitting = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [CompletionItem(incomplete, "file"), *fitting]  # bash forgets what stands before a file


@click.group()
def models() -> None:
    """Get models from the Hugging Face hub, and see what they are."""


def _folder_option(command: F) -> F:
    return click.option(
        "--dir",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        envvar="SPECMESH_MODELS_DIR",
        help="The folder of models (default: models, in specmesh's folder of this platform's cache).",
    )(command)


@models.command()
@click.argument("hub_id")
@click.argument("file", required=False)
@click.option("--revision", metavar="R", help="A branch, tag or commit (default: the main branch).")
@_folder_option
def pull(hub_id: str, file: str | None, revision: str | None, folder: Path | None) -> None:
    """Download model HUB_ID (OWNER/NAME) and print its path; FILE names one of several GGUF files.

    A transfer that broke off goes on where it stopped; checksums are verified. HF_TOKEN, HF_ENDPOINT and
    HF_HUB_OFFLINE mean what they mean to huggingface_hub.
    """
    from specmesh.model_pull import Pull
    from specmesh.model_pull import pull as get
    from specmesh.paths import models_dir

    try:
        click.echo(get(Pull(hub_id, file, revision, (folder or models_dir()).absolute())))
    except KeyboardInterrupt:
        click.echo("specmesh: interrupted; what came is kept, the same command goes on from there", err=True)
        raise


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@_folder_option
def list_(as_json: bool, folder: Path | None) -> None:
    """List the models in the folder. Their names are what --model takes."""
    from specmesh import model_store
    from specmesh.paths import models_dir

    root = (folder or models_dir()).absolute()
    found = model_store.entries(root)
    if as_json:
        print_json(model_store.as_json(root, found))
    elif found:
        click.echo("\n".join(model_store.lines(found)))
    else:
        click.echo(f"no models in {root}: `specmesh models pull` gets them", err=True)


@models.command()
@click.argument("model", metavar="PATH", shell_complete=complete_model)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@_folder_option
def inspect(model: str, as_json: bool, folder: Path | None) -> None:
    """Tell what the model at PATH is (a GGUF file, a model directory, a name of the list, or `bundled`).

    Of the bundled pair that is the target, as for the verifier. A GGUF model is loaded to find out whether part of its
    context can be removed.
    """
    from specmesh import logs, model_inspect
    from specmesh.model_store import resolve
    from specmesh.paths import bundled, models_dir

    logs.configure("error", "auto")
    named = bundled("target.gguf") if model == "bundled" else resolve(model, (folder or models_dir()).absolute())
    report = model_inspect.inspect(Path(named))
    if model == "bundled":
        report = replace(report, notes=(*report.notes, f"the drafter's: {bundled('drafter.gguf')} and drafter-hf"))
    if as_json:
        print_json(model_inspect.as_json(report))
    else:
        click.echo("\n".join(model_inspect.lines(report)))
