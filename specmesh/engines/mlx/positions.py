"""How a Hugging Face model encodes positions, in the keys of config.json that mlx-lm reads.

transformers 5 writes `rope_parameters`; before, each of its parts was a key of its own. Most
architectures of mlx-lm 0.32 know the older keys only. Without them they take their defaults without
a word, so that Llama 3 would rotate by the base of Llama 2.
"""

from typing import Any, cast

Config = dict[str, Any]

_OWN_KEYS = ("rope_theta", "partial_rotary_factor")
_BY_LAYER = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
"""The key of the base of each kind of layer, where the kinds differ (Gemma 3)."""


def missing_keys(config: Config) -> Config:
    """Return the older keys that a config.json lacks and its `rope_parameters` gives.

    A config with a `text_config` gets that one whole, with its own missing keys.
    """
    missing: Config = {}
    parameters = config.get("rope_parameters")
    if isinstance(parameters, dict):
        for key, value in _older(cast("Config", parameters)).items():
            if config.get(key) is None:
                missing[key] = value
    text = config.get("text_config")
    if isinstance(text, dict):
        of_text = missing_keys(cast("Config", text))
        if of_text:
            missing["text_config"] = text | of_text
    return missing


def _older(parameters: Config) -> Config:
    """Return `rope_parameters` in the older keys."""
    kinds = {kind: parameters[kind] for kind in _BY_LAYER if isinstance(parameters.get(kind), dict)}
    if not kinds:
        return _of_all_layers(parameters)
    older = _of_all_layers(kinds.get("full_attention", {}))
    for kind, key in _BY_LAYER.items():
        base = kinds.get(kind, {}).get("rope_theta")
        if base is not None:
            older[key] = base
    return older


def _of_all_layers(parameters: Config) -> Config:
    older = {key: parameters[key] for key in _OWN_KEYS if key in parameters}
    scaled = parameters.get("rope_type", "default") != "default"
    older["rope_scaling"] = parameters if scaled else None  # some architectures want the key
    return older
