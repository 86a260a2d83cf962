"""What `mlx.launch` tells each process that it starts, by variables of the environment."""

import json
import os
from pathlib import Path

from specmesh.core.fields import is_list
from specmesh.errors import ConfigError

_STARTED_BY = "start it by `mlx.launch`, see docs/mlx.md"


def own_rank() -> int:
    """Return the rank of this process. Raises ConfigError if it has none."""
    rank = os.environ.get("MLX_RANK", "")
    if not rank.isdecimal():
        raise ConfigError("--distributed: this process has no rank", _STARTED_BY)
    return int(rank)


def host_of_first() -> str:
    """Return the host of rank 0, as all ranks reach it. Raises ConfigError."""
    coordinator = os.environ.get("MLX_JACCL_COORDINATOR")
    file = os.environ.get("MLX_HOSTFILE")
    if coordinator is None and file is not None:
        coordinator = _first_of(Path(file))
    host, _, port = (coordinator or "").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("--distributed: where is rank 0?", f"{_STARTED_BY}: ring or jaccl")
    return host


def _first_of(file: Path) -> str | None:
    """Return the first address of rank 0 in a file of hosts; None if it has none."""
    try:
        ranks: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--distributed: {file} cannot be read: {error}", _STARTED_BY) from None
    first = ranks[0] if is_list(ranks) and ranks else None
    address = first[0] if is_list(first) and first else None
    return address if isinstance(address, str) else None
