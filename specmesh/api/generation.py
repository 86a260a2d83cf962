"""A request of a client, whatever its dialect, and the fields that all dialects have."""

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specmesh.api.backend import ModelInfo
from specmesh.api.unread_fields import unread_fields
from specmesh.core.fields import Fields, are_ids, is_object
from specmesh.core.requests import CHAT, Request
from specmesh.core.sampling.constraint import Grammar
from specmesh.core.sampling.sampler import MOST
from specmesh.core.session_params import LARGEST_MAX_TOKENS, LEAST_FACTOR, endless, session_params
from specmesh.errors import PromptTooLong, RequestError, SpecmeshError

VERIFIER_TIMEOUT = 30.0
"""Default seconds that a text waits for a verifier that went away."""

LONGEST_TIMEOUT = 86_400.0

MAX_CHOICES = 8

MAX_TEXTS = 128
"""Texts of one request: prompts times choices."""

TOO_MANY_TEXTS = f"one request has {MAX_TEXTS} texts at most: send fewer prompts at once"

_NAME = re.compile(r"(chat)?cmpl-[0-9a-f]{32}")

_RESUME_FIELDS = {"id", "model", "model_hash", "prompt_token_ids", "token_ids"}


@dataclass(frozen=True, slots=True)
class BegunBy:
    """The model that began a resumed text; empty for another text, or if that is not known.

    model_hash: as in WELCOME. Files and adapters differ under one name.
    """

    model: str = ""
    model_hash: str = ""


NOT_BEGUN = BegunBy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The texts that a client asks for.

    requests: one for each prompt; a chat and a resumed text have one.
    chat: each text is a turn of an assistant, with thoughts and calls of tools.
    choices: answers to each request.
    model: name of the model, or "" for the default.
    began: the model that began a resumed text.
    stream: send the answer as it comes.
    include_usage: end a stream with a chunk that has the usage.
    resumable: send the fields that resume the text elsewhere.
    ignore_eos: never end a text with an end token.
    splits_thoughts: keep thoughts apart from the text.
    schema_field: path of the field with a JSON schema for the text, or "".
    ignored: names of fields without effect, and of tools that are no functions.
    """

    requests: tuple[Request, ...]
    chat: bool
    choices: int
    model: str
    began: BegunBy
    stream: bool
    include_usage: bool
    resumable: bool
    ignore_eos: bool
    splits_thoughts: bool
    schema_field: str
    ignored: tuple[str, ...]

    def named(self, error: SpecmeshError) -> SpecmeshError:
        """Return an error that names the client's field with the schema.

        A verifier knows the schema as `json_schema`, whatever field it came in.
        """
        is_schemas = isinstance(error, RequestError) and error.param == "json_schema"
        if not (is_schemas and self.schema_field):
            return error
        message = re.sub(r"json_schema( cannot be used)?", self.schema_field, str(error), count=1)
        return RequestError(message, self.schema_field.partition(".")[0])


def parse_generation(
    fields: Fields,
    requests: Sequence[Request],
    *,
    chat: bool,
    began: BegunBy = NOT_BEGUN,
    schema_field: str = "",
    skipped: Iterable[str] = (),
) -> Generation:
    """Return a generation of these requests, with the fields that all dialects have.

    fields: a body of which the dialect has read its own fields.
    skipped: more names for `Generation.ignored`.
    Raises RequestError for a wrong field, for an unread one that would change the answer, and for
    several texts where only one can be resumed.
    """
    choices = fields.integer("n", 1, 1, MAX_CHOICES)
    resumable = fields.flag("resumable")
    _check_count(requests, choices, resumable=resumable)
    stream_options = Fields(fields.mapping("stream_options"))
    return Generation(
        requests=tuple(replace(request, known_size=request.size) for request in requests),
        chat=chat,
        choices=choices,
        model=fields.text("model"),
        began=began,
        stream=fields.flag("stream"),
        include_usage=stream_options.flag("include_usage"),
        resumable=resumable,
        ignore_eos=fields.flag("ignore_eos"),
        splits_thoughts=_splits_thoughts(fields),
        schema_field=schema_field,
        ignored=(*unread_fields(fields), *skipped),
    )


def _check_count(requests: Sequence[Request], choices: int, *, resumable: bool) -> None:
    count = len(requests) * choices
    if count > MAX_TEXTS:
        raise RequestError(TOO_MANY_TEXTS, "prompt")
    resumes = bool(requests[0].id)
    if count > 1 and (resumable or resumes):
        why = "only one text at a time can be gone on with: leave n out, and send one prompt"
        raise RequestError(why, "n" if choices > 1 else "prompt")


def parse_request(
    fields: Fields, *, max_tokens: int, logprobs: int | None, grammar: Grammar | None
) -> Request:
    """Return a request without its prompt. Raises RequestError.

    max_tokens, logprobs, grammar: as the dialect's own fields have them.
    """
    _rename_repetition(fields)
    params = session_params(
        fields,
        seed=_seed(fields),
        max_tokens=max_tokens,
        logprobs=logprobs,
        grammar=grammar,
    )
    if not fields.flag("stream"):  # a whole answer has no place for it
        params = replace(params, progress=False)
    timeout = fields.number("reconnect_timeout", VERIFIER_TIMEOUT, 0.0, LONGEST_TIMEOUT)
    return Request(
        prompt=None,
        prompt_ids=None,
        params=params,
        rounds=fields.flag("rounds"),
        reconnect_timeout=timeout,
    )


def parse_max_tokens(fields: Fields, name: str, default: int) -> int:
    """Return the value of a field that limits the answer's tokens; -1 is no limit."""
    most = fields.integer(name, default, -1, LARGEST_MAX_TOKENS)
    return LARGEST_MAX_TOKENS if most < 0 else most


def _seed(fields: Fields) -> int:
    """Return the lowest 32 bits of a seed, as the wire carries no more; a random seed for -1."""
    seed = fields.integer("seed", -1, -(2**63), 2**64 - 1)
    if seed == -1:
        return secrets.randbits(32)
    return seed % 2**32


def _rename_repetition(fields: Fields) -> None:
    """Make vLLM's `repetition_penalty` a `repeat_penalty`.

    The formula is the same. vLLM applies it to the whole text with its prompt, so that is the
    default of `repeat_last_n` here. One of both may be 1, which is no penalty.
    Raises RequestError for two different penalties.
    """
    penalty = fields.number("repetition_penalty", 1.0, LEAST_FACTOR, MOST)
    if penalty == 1:
        return
    if fields.given.get("repeat_penalty", penalty) not in (1, penalty):
        why = "repetition_penalty and repeat_penalty differ: give one of them"
        raise RequestError(why, "repetition_penalty")
    fields.given["repeat_penalty"] = penalty
    fields.given.setdefault("repeat_last_n", -1)


def _splits_thoughts(fields: Fields) -> bool:
    """Return False where thoughts stay in the text; "deepseek" is llama-server's word for auto."""
    form = fields.text("reasoning_format", "auto")
    if form not in ("auto", "none", "deepseek"):
        raise RequestError("reasoning_format must be auto or none", "reasoning_format")
    return form != "none"


def refuse_echo(request: Request) -> None:
    """Raise RequestError where the prompt is to be echoed."""
    if request.params.echo:
        why = "only a completion's prompt can be echoed, not a chat or a resumed text"
        raise RequestError(why, "echo")


def parse_resume(fields: Fields, request: Request) -> tuple[Request, BegunBy]:
    """Return the request that resumes a text, and the model that began it. Raises RequestError.

    `resume` has the text's id, and the ids of its prompt and of its tokens so far where the client
    knows them. Without it the request stays without an id, and no model began it.
    """
    value = fields.get("resume")
    if value is None:
        return request, NOT_BEGUN
    refuse_echo(request)
    if not is_object(value) or value.keys() - _RESUME_FIELDS:
        names = "id, model, model_hash, prompt_token_ids and token_ids"
        raise RequestError(f"resume must be an object with {names}, or id alone", "resume")
    model = value.get("model", "")
    model_hash = value.get("model_hash", "")
    if not isinstance(model, str) or not isinstance(model_hash, str):
        raise RequestError("resume.model and resume.model_hash must be texts", "resume")
    began = BegunBy(model, model_hash)
    name = value.get("id")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        why = "resume.id must be the id of an answer, cmpl- or chatcmpl- and 32 digits"
        raise RequestError(why, "resume")
    if "prompt_token_ids" not in value:
        return replace(request, id=name, named_only=True), began
    prompt = value["prompt_token_ids"]
    generated = value.get("token_ids", [])
    if not prompt or not are_ids(prompt) or not are_ids(generated):
        why = "resume.prompt_token_ids and token_ids must be lists of token ids"
        limits = "each from 0 to 2147483647, the first not empty"
        raise RequestError(f"{why}, {limits}", "resume")
    resumed = replace(
        request,
        id=name,
        prompt_ids=tuple(prompt),
        generated=tuple(generated),
        known=len(generated),
    )
    return resumed, began


def check_lengths(generation: Generation, n_ctx: int | None) -> None:
    """Raise RequestError for ids that cannot fit into the context; None if that is unknown."""
    if n_ctx is None:
        return
    for request in generation.requests:
        n_prompt = len(request.prompt_ids or ())
        if n_prompt >= n_ctx:
            raise PromptTooLong.of(n_prompt, n_ctx)
        count = n_prompt + len(request.generated)
        if count > n_ctx:
            raise RequestError(f"{count} ids are no text that has {n_ctx} at most", "resume")


def requests_of(generation: Generation, served: ModelInfo) -> list[Request]:
    """Return the request of each choice, with a name and a seed of its own.

    The seeds of a request's choices follow each other.
    """
    params = generation.requests[0].params
    if generation.ignore_eos:
        params = endless(params, served.vocabulary.end_ids)
    requests: list[Request] = []
    for request in generation.requests:
        for number in range(generation.choices):
            seed = (params.sampling.seed + number) % 2**32
            sampling = replace(params.sampling, seed=seed)
            numbered = replace(
                request,
                params=replace(params, sampling=sampling),
                id=request.id or _new_name(generation),
                target=served.target,
                choice=number,
            )
            requests.append(numbered)
    return requests


def _new_name(generation: Generation) -> str:
    """Return a name that cannot be guessed: with it the text can be resumed."""
    prefix = CHAT if generation.chat else "cmpl-"
    return prefix + new_digits()


def new_digits() -> str:
    """Return 32 digits that cannot be guessed."""
    return secrets.token_hex(16)
