"""`specmesh rpc-server`. A thin function, like those of cli.py."""

from collections.abc import Callable
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


def insecure_rpc_option(command: F) -> F:
    """What its user says who lets RPC leave the machine."""
    return click.option(
        "--insecure-rpc",
        is_flag=True,
        help="Use RPC beyond this machine: it has neither keys nor encryption; whoever reaches the port or is in "
        "between reads and changes weights and texts, and may take the machine over.",
    )(command)


@click.command("rpc-server")
@click.option("--bind", default="127.0.0.1:50052", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="CPU threads (default: one per core).")
@insecure_rpc_option
def rpc_server(bind: str, threads: int | None, insecure_rpc: bool) -> None:
    """Lend this machine's GPUs, or its CPU, to `specmesh verifier --rpc`, one verifier at a time.

    This is llama.cpp's own server, and both sides need builds of it with RPC. Ctrl-C ends it, and with it a verifier
    that uses it.
    """
    from specmesh.engines.llama_rpc import serve
    from specmesh.host import physical_cores
    from specmesh.privacy import check_rpc

    check_rpc(bind, "--bind", insecure=insecure_rpc)
    serve(bind, threads or physical_cores())
