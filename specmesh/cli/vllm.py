"""`specmesh vllm-config`: the lines that start a vLLM server with drafts of specmesh."""

import json as jsons
import os
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.cli.options import FILE, flag, json_option, option, print_result
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.errors import ConfigError
from specmesh.security.addresses import check_bind, is_web_address
from specmesh.security.keys import find_keys

if TYPE_CHECKING:
    from specmesh.vllm.settings import ProposerSettings

DRAFTS = 8
"""Drafts of a row: vLLM keeps memory for so many, used or not."""


@click.command("vllm-config")
@option(
    "--drafts",
    click.IntRange(1, MAX_DRAFTS),
    "N",
    "Maximum number of drafts of a text in a step: vLLM's num_speculative_tokens.",
    DRAFTS,
)
@option(
    "--bind",
    str,
    "ADDRESS",
    "Address to listen on for drafters; tcp://HOST:* takes a free port.",
    shown="that of [vllm], or tcp://127.0.0.1:7071",
)
@option(
    "--http",
    str,
    "URL",
    "Address of vLLM's API, which clients of drafters are told.",
    shown="that of [vllm], or http://127.0.0.1:8000/v1",
)
@option("--keys", FILE, "FOLDER", "Folder of keys.", shown="that of [vllm], or as for the daemons")
@flag("--insecure-no-auth", "Use no keys: on a network whose every member you trust.")
@json_option
def vllm_config(
    drafts: int,
    bind: str | None,
    http: str | None,
    keys: Path | None,
    insecure_no_auth: bool,
    json: bool,
) -> None:
    """Print the environment and the command that start a vLLM server with drafts of specmesh.

    Drafters attach at --bind as at a verifier. vLLM and specmesh are installed in one environment:
    pip install specmesh vllm.
    """
    from specmesh.vllm.settings import read_settings

    settings = read_settings()
    settings = replace(
        settings,
        bind=settings.bind if bind is None else bind,
        http=settings.http if http is None else http,
        keys=settings.keys if keys is None else keys.absolute(),
        insecure=insecure_no_auth or (settings.insecure and keys is None),
    )
    keyed = not settings.insecure and find_keys(settings.keys) is not None
    check_bind(settings.bind, keyed=keyed, insecure=settings.insecure, free_port=True)
    if not is_web_address(settings.http):
        raise ConfigError(
            f"--http {http} is no URL", "give the one of vLLM's API, http://HOST:8000/v1"
        )
    environment = _environment(settings)
    config: dict[str, object] = {
        "method": "custom_class",
        "model": "specmesh.vllm.Proposer",
        "num_speculative_tokens": drafts,
    }
    result = {"environment": environment, "speculative_config": config}
    print_result(result, _lines(environment, config), as_json=json)
    warning = _version_warning()
    if warning is not None:
        click.echo(f"specmesh: {warning}", err=True)


def _environment(settings: "ProposerSettings") -> dict[str, str]:
    """Return the variables of those settings that the server would not have by its file.

    It may be started where the variables of this environment are not set.
    """
    from specmesh.vllm.settings import CONFIG, VARIABLES, read_settings

    environment: dict[str, str] = {}
    if CONFIG in os.environ:
        environment[CONFIG] = os.environ[CONFIG]
    usual = read_settings(environment)
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(usual, field.name):
            environment[f"{VARIABLES}{field.name.upper()}"] = str(value)
    return environment


def _lines(environment: dict[str, str], config: dict[str, object]) -> list[str]:
    """Return the lines for a shell."""
    lines: list[str] = []
    if environment:
        assigned = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        lines.append(f"export {' '.join(assigned)}")
    lines.append(f"{_server()} --speculative-config {shlex.quote(jsons.dumps(config))}")
    return lines


def _server() -> str:
    """Return the command that starts the vLLM of this environment with a model."""
    from specmesh.vllm.compatibility import CPU_PACKAGE, installed

    found = installed()
    if found is not None and found[0] == CPU_PACKAGE:
        return "python -m vllm.entrypoints.openai.api_server --model MODEL"
    return "vllm serve MODEL"


def _version_warning() -> str | None:
    """Return what to warn of about the vLLM in this environment; None if it suits."""
    from specmesh.vllm.compatibility import installed_version, is_known

    version = installed_version()
    if version is None:
        return "vLLM is not in this environment: pip install specmesh vllm, where it is to run"
    if not is_known(version):
        return f"vLLM {version} is here, of which nothing is known: it gets no drafts"
    return None
