"""A class for vLLM's `custom_class` that never drafts: the price of the runner that it needs."""


class EmptyProposer:
    """Never drafts."""

    def __init__(self, vllm_config: object) -> None:
        """Take what vLLM gives."""

    def load_model(self, *_: object) -> None:
        """Load nothing."""

    def propose(self, sampled: list[list[int]], *_: object, **__: object) -> list[list[int]]:
        """Return no drafts for each row."""
        return [[] for _ in sampled]
