"""A rank of `--distributed` that is not rank 0."""

import structlog

from specmesh.config import ModelSettings
from specmesh.engines.mlx.model import MlxModel, free, mapped
from specmesh.engines.mlx.ranks import join, messages, obey
from specmesh.engines.mlx.verifier import failed, targets_of, width_of

_log = structlog.get_logger("specmesh.engines.mlx")


def follow(settings: ModelSettings) -> None:
    """Compute this rank's part of each step, until rank 0 ends.

    Raises ConfigError, and EngineError if rank 0 is lost within a step.
    """
    group = join()
    model = MlxModel(settings, group=group)
    targets = targets_of(model, width_of(settings))
    _log.info("ready", role="rank", rank=group.rank(), ranks=group.size(), model=model.name)
    try:
        with mapped(failed):
            for message in messages(group):
                obey(targets, message)
    finally:
        targets.close()
        free()
    _log.info("stopped", role="rank")
