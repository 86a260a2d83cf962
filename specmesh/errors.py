"""Every error that specmesh raises on purpose, and the side at fault.

The fault is ours, the client's, a peer's, or nobody's.

    SpecmeshError
        ConfigError             ours: settings, model files, addresses
            InsecureKeys        ours: keys that others can read or change
            NotThereYet         ours: an address, a disk or a GPU that may come
        EngineError             ours: a model's library failed
            NoRoom              ours: too few cells for a step
            ChildFailed         ours: a process for untrusted input
                ChildLate       ours: it took too long
        RequestError            client: this can never be served
            PromptTooLong       client: no room for one token
            NotPassedOn         client: too long for a drafter's frames
            MissingField        client: a required field is missing
            NoSuchModel         client: no verifier serves it
            NoSuchText          client: it is gone, or belongs to another key
            NotOffered          client: another daemon may do it
        DaemonUnreachable       peer: does not answer
            WentAway            peer: may be back
                TimedOut        peer: sends nothing for too long
        Refused                 client: must not
            WrongCode           client: another pairing code
        Busy                    nobody: has no room, for now
            Starting            nobody: is not ready yet
        PullError               peer: a hub or the way to it
        InternalError           ours: a defect, met while answering
        LocalProtocolError      ours: a defect, met before it was sent
            InvalidTransition   ours: no table of states has it
            UnfitMessage        ours: a message that no frame holds
        RemoteProtocolError     peer: broke the protocol
            FrameError          peer: bytes that are no frame
            EndLost             peer: sent too little, or some was lost

`exit_code` is the exit code of the command line. Values that code needs are fields. An error of
another process arrives as its class and sentence, of which `read` makes the error again: `what` is
the whole sentence, and its other fields are empty, but for those that are read from it.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import ClassVar, Self


class SpecmeshError(Exception):
    """Base of all errors raised on purpose.

    code: the API's code of the error, OpenAI's if there is one.
    what: the fault in words.
    remedy: the action that helps, if there is one.
    """

    exit_code: ClassVar[int] = 1
    code: ClassVar[str | None] = None

    def __init__(self, what: str = "", remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy

    @classmethod
    def read(cls, sentence: str) -> Self:
        """Return the error of another process, of which the sentence came."""
        return cls(sentence)


class ConfigError(SpecmeshError):
    """Settings, model files or addresses of this side are wrong; `what` names them."""

    exit_code = 78


def pip_install(extra: str) -> str:
    """Return what installs an extra of this package."""
    return f"in specmesh's checkout, pip install '.[{extra}]'"


class InsecureKeys(ConfigError):
    """Keys that others can read or change: nothing is started with them."""

    exit_code = 77


class NotThereYet(ConfigError):
    """A daemon needs something that this machine may have later; `what` names it.

    Under a service manager, or with --wait, it waits.
    """


class EngineError(SpecmeshError):
    """A model engine failed while running."""

    code = "engine_failed"


class NoRoom(EngineError):
    """A step did not run, as its engine has too few cells left.

    The orders before it were carried out, and nothing else has changed.

    lost: sequences that are empty now, whatever they held.
    full: no free cells were found for its rows.
    """

    def __init__(self, what: str = "", lost: Iterable[int] = (), *, full: bool = True) -> None:
        super().__init__(what)
        self.lost = frozenset(lost)
        self.full = full


class ChildFailed(EngineError):
    """A process of ours for untrusted input ended, or took too much time or memory."""


class ChildLate(ChildFailed):
    """A process of ours took longer than allowed."""


class RequestError(SpecmeshError):
    """A request that this model or daemon can never serve; `param`: the field at fault, if any."""

    exit_code = 2

    def __init__(self, what: str = "", param: str | None = None, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.param = param


class PromptTooLong(RequestError):
    """The prompt does not fit into the context with room for one token.

    lengths: tokens of the prompt, at least, and of the context; None if they are not known.
    counted: the prompt has exactly so many tokens; False if it may have more.
    """

    code = "context_length_exceeded"
    lengths: tuple[int, int] | None = None
    counted = False

    @classmethod
    def of(cls, prompt_tokens: int, context: int, *, least: bool = False) -> Self:
        """Return the error in the words that clients look for; least: there may be more tokens."""
        count = f"at least {prompt_tokens}" if least else str(prompt_tokens)
        most = f"This model's maximum context length is {context} tokens"
        what = f"{most}, and your prompt has {count} tokens"
        error = cls(what, "prompt", "shorten it or start the verifier with a larger --ctx")
        error.lengths = (prompt_tokens, context)
        error.counted = not least
        return error

    @classmethod
    def read(cls, sentence: str) -> Self:
        """Return the error of another process, with the lengths that its sentence has."""
        error = super().read(sentence)
        found = _LENGTHS.search(sentence)
        if found is not None:
            context, least, prompt_tokens = found.groups()
            error.lengths = (int(prompt_tokens), int(context))
            error.counted = least is None
        return error


_LENGTHS = re.compile(r"context length is (\d+) tokens, and your prompt has (at least )?(\d+)")
"""The numbers of a sentence of `PromptTooLong.of`."""


class NotPassedOn(RequestError):
    """The request is longer than what a drafter can pass on to one verifier."""


class MissingField(RequestError):
    """A required field of a request is missing or empty."""

    code = "missing_required_parameter"


class NoSuchModel(RequestError):
    """None of a drafter's verifiers has a model of that name."""

    code = "model_not_found"

    @classmethod
    def of(cls, name: str) -> "NoSuchModel":
        """Return the error with the name, and the way to find other names."""
        reason = f"no model {name[:200]} is served here"
        return cls(reason, "model", "see `specmesh ps`, or /v1/models")


class NoSuchText(RequestError):
    """There is no text of that name: it ended, was cancelled, or its time is over."""

    code = "text_not_found"

    def __init__(self, what: str = "") -> None:
        meaning = (
            "no text of that name is here: its time was over, it was cancelled, "
            "or it belongs to another key"
        )
        super().__init__(what or meaning, "resume")


class NotOffered(RequestError):
    """This daemon does not do that; the message names the one that may."""

    code = "not_offered"


class DaemonUnreachable(SpecmeshError):
    """No daemon answers at the sockets tried, or a daemon lacks what it needs to answer."""

    exit_code = 69
    code = "verifier_unreachable"


class WentAway(DaemonUnreachable):
    """The daemon went away while answering, or is about to.

    The client may go on with it when it is back.
    """

    code = "server_went_away"


class TimedOut(WentAway):
    """The daemon sent nothing for as long as its client waits."""


class Refused(SpecmeshError):
    """The client is not allowed."""

    exit_code = 77


class WrongCode(Refused):
    """The introduction of the other side cannot be read: it had another pairing code."""


class Busy(SpecmeshError):
    """The daemon cannot serve now and may in a moment."""

    exit_code = 75
    code = "server_busy"


class Starting(Busy):
    """The daemon cannot serve yet: it starts, or loads its model."""

    code = "server_starting"


class PullError(SpecmeshError):
    """A model could not be downloaded; the next attempt goes on with the bytes that came."""

    exit_code = 69


class InternalError(SpecmeshError):
    """A defect of specmesh, met while answering: the log has it."""

    code = "internal_error"

    def __init__(self, what: str = "internal error: see the daemon's log") -> None:
        super().__init__(what)


class LocalProtocolError(SpecmeshError):
    """This side was about to break the protocol: a defect of specmesh."""


class InvalidTransition(LocalProtocolError):
    """An event came that a machine's table of states does not have in this `state`."""

    def __init__(self, machine: str, state: Enum, event: Enum) -> None:
        super().__init__(f"a {machine} that is {state.value} has no event {event.value!r}")
        self.state = state
        self.event = event


class UnfitMessage(LocalProtocolError, ValueError):
    """A message that no frame holds: too many ids, or a field out of its range."""


class RemoteProtocolError(SpecmeshError):
    """The peer broke the protocol."""


class FrameError(RemoteProtocolError):
    """Bytes from a peer that are not a frame.

    reason: length, magic, checksum, version, kind, count or body. It labels the counter of
        rejections.
    seen: the offending value.
    """

    def __init__(self, reason: str, seen: object) -> None:
        super().__init__(f"not a frame: bad {reason} ({seen!r})")
        self.reason = reason
        self.seen = seen


class EndLost(RemoteProtocolError):
    """The peer ended a text of `length` tokens, of which `came` had come."""

    @classmethod
    def of(cls, came: int, length: int) -> "EndLost":
        """Return the error with the number of tokens that came."""
        share = f"{came} of {length} tokens came"
        reason = f"the end of the text was lost on its way from the verifier ({share})"
        return cls(reason, "ask again")
