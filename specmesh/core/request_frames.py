"""A request as frames: its OPEN, the frames of parts that are too long for it, and its refusal.

A short request is one OPEN, with the prompt, the chat and all options in its JSON. A long one would
hold up the frames of other requests, so it is sent in pieces:

    IDS base 0, IDS base 8192, ..    the token ids, if there are more than a frame has
    BODY base 0, BODY base 65536, .. the JSON of the whole OPEN, if that is longer than a piece
    OPEN with n_ids, n_body          how much of both must have come by then

Only the OPEN is answered. If a piece was lost, the numbers do not fit, and the answer is "busy".
Then the request can be sent again. The WELCOME of a verifier shows whether it takes such frames.

An error is sent as a code and a sentence. The code stands for a class of errors that a drafter
handles in its own way; the sentence is for people.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from specmesh.core.prefix import crc_of
from specmesh.core.requests import Request
from specmesh.core.session_params import wire_params
from specmesh.core.text.chat_message import message_of
from specmesh.errors import (
    Busy,
    EngineError,
    NoSuchText,
    PromptTooLong,
    RequestError,
    SpecmeshError,
    UnfitMessage,
)
from specmesh.wire import messages as m

TEXT_IDS_PER_S = 2**18
"""Ids of requests, in IDS frames, that a drafter sends a verifier in a second."""
BODY_BYTES_PER_S = 2**19
"""Bytes of requests, in BODY frames, that a drafter sends a verifier in a second.

A verifier takes twice as many: JSON in JSON is at most twice as long.
"""

_REFUSALS: dict[str, type[SpecmeshError]] = {
    "busy": Busy,
    "context": PromptTooLong,
    "session": NoSuchText,
    "engine": EngineError,
}
"""The codes of a request's errors on the wire; any other error is "request"."""


def refusal_of(error: SpecmeshError) -> tuple[str, str, str]:
    """Return an error's code, its message and the request's field that it is about, or ""."""
    param = getattr(error, "param", None) or ""
    for code, kind in _REFUSALS.items():
        if isinstance(error, kind):
            return code, str(error), param
    return "request", str(error), param


def error_of(code: str, message: str, param: str) -> SpecmeshError:
    """Return the error that a verifier has sent, from its code, sentence and field."""
    if code == "engine":
        message = f"the verifier's engine failed: {message}"
    # A newer verifier may send codes that are unknown here.
    error = _REFUSALS.get(code, RequestError).read(message)
    if isinstance(error, RequestError) and param:
        error.param = param
    return error


def open_of(request: Request, ref: int) -> m.Open:
    """Return the OPEN that asks a verifier for a session."""
    prompt = request.prompt_ids or ()
    return m.Open(
        ref=ref,
        prompt=request.prompt or "",
        options=request.params.named(),
        # A resumed text goes with its prompt: the verifier reads both, and `n_prompt` parts them.
        ids=[*prompt, *request.generated],
        messages=[message.fields() for message in request.messages],
        name=request.id,
        n_prompt=len(prompt),
        adopt=request.named_only,
        continued=request.continued,
        template=dict(request.template),
        prediction=request.prediction,
    )


OpenPart = m.Ids | m.Body
"""A frame with a part of the OPEN that follows it."""

WriteOpen = Callable[[m.Open], bytes]
"""Returns the JSON body of an OPEN, of any length."""


def frames_of(
    order: m.Open, write: WriteOpen, *, takes_ids: bool = True, takes_body: bool = True
) -> list[OpenPart | m.Open]:
    """Return the frames of the parts that are too long for an OPEN, then the OPEN itself.

    takes_ids, takes_body: the verifier takes frames of that kind.

    Raise UnfitMessage if the body is too long even so.
    """
    frames: list[OpenPart | m.Open] = []
    if takes_ids and len(order.ids) > m.MAX_TOKENS:
        frames += _frames_of_ids(order)
        order = replace(order, ids=[], n_ids=len(order.ids))
    body = write(order)
    most = m.MAX_OPEN_BODY if takes_body else m.MAX_BODY
    if len(body) > most:
        raise UnfitMessage(f"{len(body)} bytes exceed {most}")
    if takes_body and len(body) > m.MAX_PIECE:
        frames += _frames_of_body(order.ref, body.decode())
        # All is in the pieces. This OPEN only shows that they are complete.
        order = m.Open(ref=order.ref, prompt="", options={}, n_body=len(body))
    frames.append(order)
    return frames


def _frames_of_ids(order: m.Open) -> Iterator[m.Ids]:
    """Yield the ids in frames, each with the CRC of those before it."""
    crc = 0
    for base in range(0, len(order.ids), m.MAX_TOKENS):
        ids = tuple(order.ids[base : base + m.MAX_TOKENS])
        yield m.Ids(order.ref, base, crc, ids)
        crc = crc_of(ids, crc)


def _frames_of_body(ref: int, body: str) -> Iterator[m.Body]:
    """Yield a body in pieces of whole letters; `base` counts bytes."""
    base = 0
    for begin in range(0, len(body), m.MAX_PIECE):
        piece = body[begin : begin + m.MAX_PIECE]
        yield m.Body(ref, base, piece)
        # A piece ends between letters, so it is JSON's text in UTF-8 by itself.
        base += len(piece.encode())


def requested(order: m.Open) -> Request:
    """Return the request of an OPEN; raise RequestError if it contradicts itself."""
    if order.n_prompt > len(order.ids):
        raise RequestError(f"{len(order.ids)} ids cannot begin with a prompt of {order.n_prompt}")
    params = wire_params(order.options)
    if params.grammar is None and order.options.get("grammar_kind"):
        raise RequestError("this verifier knows no grammars of that kind: update it", "grammar")
    # Without a number all ids are the prompt: a new text.
    n_prompt = order.n_prompt or len(order.ids)
    return Request(
        order.prompt,
        tuple(order.ids[:n_prompt]) or None,
        params,
        messages=tuple(map(message_of, order.messages)),
        continued=order.continued,
        template=order.template,
        id=order.name,
        generated=tuple(order.ids[n_prompt:]),
        named_only=order.adopt,
        prediction=order.prediction,
    )
