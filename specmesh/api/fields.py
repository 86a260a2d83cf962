"""Fields of a body that nothing here reads: most are ignored, and what would change the text is refused by name."""

from collections.abc import Collection, Sequence
from urllib.parse import quote

from specmesh.errors import RequestError

Json = dict[str, object]

_CHANGING: tuple[tuple[tuple[object, ...], str], ...] = (
    ((), "audio prediction web_search_options"),  # OpenAI's
    ((1,), "best_of"),
    ((0,), "top_logprobs"),
    ((False,), "echo"),
    (("",), "suffix"),
    (([],), "tools functions"),
    (("none", "auto"), "tool_choice function_call"),
    ((True, False), "parallel_tool_calls"),
    ((["text"],), "modalities"),
    ((), "n_predict samplers"),  # llama-server's; what only tunes one of these, as dry_base does, needs no place here
    ((0,), "mirostat dry_multiplier xtc_probability dynatemp_range min_keep"),
    ((-1, 0), "top_n_sigma t_max_predict_ms"),
    ((-1,), "adaptive_target"),
    ((1,), "typ_p"),
    (([],), "lora"),
    (({},), "chat_template_kwargs"),
    ((), "max_new_tokens allowed_token_ids truncate_prompt_tokens structured_outputs chat_template"),  # vLLM's, others'
    ((), "guided_json guided_regex guided_choice guided_grammar regex ebnf"),
    ((0,), "min_tokens no_repeat_ngram_size top_a smoothing_factor"),
    ((1,), "repetition_penalty length_penalty num_beams"),
    ((False,), "use_beam_search include_stop_str_in_output"),
    ((True,), "skip_special_tokens do_sample"),
    (([],), "stop_token_ids bad_words logits_processors documents"),
)
"""Fields that would change the text, or what an answer is, after the values besides null that change nothing."""

_NEUTRAL = {name: values for values, names in _CHANGING for name in names.split()}

_TOLD, _NAME = 16, 64
"""Names that the log and the header have at most, and letters of one."""


def ignored(body: Json, known: Collection[str]) -> tuple[str, ...]:
    """The fields that are neither `known` nor change anything; raises RequestError for one that would."""
    unread = [name for name in body if name not in known]
    for name in unread:
        neutral = _NEUTRAL.get(name)
        if neutral is not None and body[name] is not None and not any(_same(body[name], one) for one in neutral):
            raise RequestError(f"{name} is not supported yet", name)
    return tuple(name for name in unread if name not in _NEUTRAL and body[name] is not None)


def shown(names: Sequence[str]) -> str:
    """Names from a client's body, for a header and the log."""
    return ", ".join(quote(name[:_NAME], "[]", errors="replace") for name in names[:_TOLD])


def _same(value: object, other: object) -> bool:
    """Equal as JSON: true is not 1 there."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
