"""`specmesh vllm-config`: the lines that start a vLLM server with drafts of specmesh."""

import json as jsons
import shlex
from pathlib import Path

import click

from specmesh.cli.options import FILE, flag, json_option, option, print_result
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.errors import ConfigError
from specmesh.security.addresses import check_bind, is_web_address
from specmesh.security.keys import find_keys

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
    "tcp://127.0.0.1:7071",
)
@option(
    "--http",
    str,
    "URL",
    "Address of vLLM's API, which clients of drafters are told.",
    "http://127.0.0.1:8000/v1",
)
@option("--keys", FILE, "FOLDER", "Folder of keys (default: as for the daemons).")
@flag("--insecure-no-auth", "Use no keys: on a network whose every member you trust.")
@json_option
def vllm_config(
    drafts: int, bind: str, http: str, keys: Path | None, insecure_no_auth: bool, json: bool
) -> None:
    """Print the environment and the command that start a vLLM server with drafts of specmesh.

    Drafters attach at --bind as at a verifier. vLLM and specmesh are installed in one environment:
    pip install specmesh vllm.
    """
    keyed = not insecure_no_auth and find_keys(keys) is not None
    check_bind(bind, keyed=keyed, insecure=insecure_no_auth, free_port=True)
    if not is_web_address(http):
        raise ConfigError(
            f"--http {http} is no URL", "give the one of vLLM's API, http://HOST:8000/v1"
        )
    environment = _environment(bind, http, keys, insecure=insecure_no_auth)
    config: dict[str, object] = {
        "method": "custom_class",
        "model": "specmesh.vllm.Proposer",
        "num_speculative_tokens": drafts,
    }
    result = {"environment": environment, "speculative_config": config}
    print_result(result, _lines(environment, config), as_json=json)
    warning = _installed()
    if warning is not None:
        click.echo(f"specmesh: {warning}", err=True)


def _environment(bind: str, http: str, keys: Path | None, *, insecure: bool) -> dict[str, str]:
    """Return the variables of all settings that are not as they would be without them."""
    from specmesh.vllm.settings import VARIABLES, ProposerSettings

    usual = ProposerSettings()
    environment: dict[str, str] = {}
    if bind != usual.bind:
        environment[f"{VARIABLES}BIND"] = bind
    if http != usual.http:
        environment[f"{VARIABLES}HTTP"] = http
    if keys is not None:
        environment[f"{VARIABLES}KEYS"] = str(keys.absolute())
    if insecure:
        environment[f"{VARIABLES}INSECURE"] = "1"
    return environment


def _lines(environment: dict[str, str], config: dict[str, object]) -> list[str]:
    """Return the lines for a shell."""
    lines: list[str] = []
    if environment:
        assigned = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        lines.append(f"export {' '.join(assigned)}")
    lines.append(f"vllm serve MODEL --speculative-config {shlex.quote(jsons.dumps(config))}")
    return lines


def _installed() -> str | None:
    """Return what is to be known of the vLLM in this environment; None if it suits.

    Raises ConfigError for a version that is not known.
    """
    from specmesh.vllm.compatibility import BEYOND, FIRST, installed_version, parts_of

    version = installed_version()
    if version is None:
        return "vLLM is not in this environment: pip install specmesh vllm, where it is to run"
    if not FIRST <= parts_of(version) < BEYOND:
        return f"vLLM {version} is here, of which nothing is known: it gets no drafts"
    return None
