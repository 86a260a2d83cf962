"""The fields of a body that the API does not know."""

from collections.abc import Iterable
from urllib.parse import quote

from specmesh.core.fields import Fields
from specmesh.errors import RequestError

_UNSUPPORTED = (
    "audio documents functions prediction suffix top_logprobs web_search_options "
    "chat_template include_stop_str_in_output truncate_prompt_tokens "
    "dry_multiplier dynatemp_range lora min_keep mirostat smoothing_factor top_a xtc_probability "
    "allowed_token_ids bad_words logits_processors max_new_tokens min_tokens stop_token_ids "
    "ebnf guided_choice guided_grammar guided_json guided_regex regex structured_outputs "
    "no_repeat_ngram_size use_beam_search"
)
_NEUTRAL: dict[str, tuple[object, ...]] = {
    _UNSUPPORTED: (False, 0, "", [], {}),
    "best_of length_penalty num_beams typ_p typical_p": (1,),
    "adaptive_target n_predict": (-1,),
    "t_max_predict_ms top_n_sigma": (-1, 0),
    "do_sample skip_special_tokens": (True,),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "samplers": (),
}
_CHANGING = {name: values for names, values in _NEUTRAL.items() for name in names.split()}
"""Fields of OpenAI, llama-server, vLLM and others that would change an answer.

Each has the values that change nothing; so does null.
"""

_LONGEST_HEADER = 300  # characters of a header with the names of ignored fields
_LONGEST_NAME = 64  # characters of a name, before it is quoted


def unread_fields(fields: Fields) -> tuple[str, ...]:
    """Return the names of unread fields that are not known at all.

    Raises RequestError for a field that would change the answer.
    """
    names: list[str] = []
    for name in fields.unread():
        if name not in _CHANGING:
            names.append(name)
        elif fields.given[name] not in _CHANGING[name]:
            raise RequestError(f"{name} is not supported yet", name)
    return tuple(names)


def as_header(names: Iterable[str]) -> str:
    """Return the value of a header that lists names, with dots for those that do not fit.

    Clients choose the names. So each is quoted as in a URL, and the work is bounded.
    """
    shown: list[str] = []
    room = _LONGEST_HEADER
    for name in names:
        quoted = quote(name[:_LONGEST_NAME], "[]") or '""'
        room -= len(quoted) + 2
        if room < 0:
            shown.append("...")
            break
        shown.append(quoted)
    return ", ".join(shown)
