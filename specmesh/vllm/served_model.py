"""The model that a vLLM server serves, read from its configuration."""

from dataclasses import dataclass
from typing import Any

from specmesh.core.draft_length import MAX_COPIED, MAX_DRAFTS
from specmesh.host import physical_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What drafters and statistics need to know of the served model.

    name: as vLLM's API names it. n_ctx: most ids of a text. n_vocab: rows of its logits.
    drafts: most drafts of a text in a step, copies of the text included. backend: for people.
    cpu_threads: that its steps take; 0 on a GPU.
    """

    name: str
    n_ctx: int
    n_vocab: int
    drafts: int
    backend: str
    cpu_threads: int

    @property
    def guesses(self) -> int:
        """Return the most drafts of a drafter in a step: a policy knows no more."""
        return min(self.drafts, MAX_DRAFTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """The place of this worker in its server.

    answers: vLLM uses the drafts of this worker, as it is the first rank of the model's shards.
    engine: its number among engines that work side by side on other requests.
    """

    answers: bool
    engine: int


def served_model(vllm_config: Any) -> ServedModel:
    """Return the model of a server, by vLLM's own `VllmConfig`."""
    model = vllm_config.model_config
    device = getattr(getattr(vllm_config, "device_config", None), "device_type", "") or "cuda"
    names = getattr(model, "served_model_name", None) or model.model
    return ServedModel(
        name=names if isinstance(names, str) else names[0],
        n_ctx=model.max_model_len,
        n_vocab=model.get_vocab_size(),
        drafts=min(vllm_config.speculative_config.num_speculative_tokens, MAX_COPIED),
        backend=f"vLLM, {device}",
        cpu_threads=physical_cores() if device == "cpu" else 0,
    )


def place_of(vllm_config: Any) -> WorkerPlace:
    """Return the place of this worker, by vLLM's own `VllmConfig`."""
    parallel = getattr(vllm_config, "parallel_config", None)
    shards = getattr(parallel, "tensor_parallel_size", 1)
    rank = getattr(parallel, "rank", 0)
    # The engines of a dense model share no layers, so each of them has rank 0. Their index differs.
    engine = getattr(parallel, "data_parallel_index", None)
    if engine is None:
        engine = getattr(parallel, "data_parallel_rank", 0)
    return WorkerPlace(
        answers=rank % shards == 0,
        engine=engine or 0,
    )
