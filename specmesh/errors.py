"""Every error specmesh raises on purpose, and whose fault it is: of this side, of who asks, of a
peer, or nobody's.

    SpecmeshError
        ConfigError             ours: settings, model files, addresses
            InsecureKeys        ours: keys that others can read or change
            NotThereYet         ours: an address, a disk or a GPU that may come
        EngineError             ours: a model's library failed
            ChildFailed         ours: a process that was to look at something
                ChildLate       ours: it took longer than it was given
        RequestError            who asks: this can never be served
            PromptTooLong       who asks: no room for one token
            MissingField        who asks: a field that it needs is not there
            NoSuchModel         who asks: nobody serves it
            NoSuchText          who asks: it is gone, or another's
            NotOffered          who asks: another daemon may do it
        DaemonUnreachable       peer: does not answer
            WentAway            peer: may be back
        Refused                 who asks: must not
            WrongCode           who asks: another pairing code
        Busy                    nobody: has no room, for now
            Starting            nobody: is not ready yet
        PullError               peer: a hub or the way to it
        InternalError           ours: a defect, met while answering
        LocalProtocolError      ours: a defect, met before it was sent
            InvalidTransition   ours: no table of states has it
        RemoteProtocolError     peer: broke the protocol
            FrameError          peer: bytes that are no frame
            EndLost             peer: said too little, or some was lost

`exit_code` is what the command line leaves with. What code needs of an error is a field, its
sentence made of that. One that another process raised comes back as its class and sentence: `what`
is all of that, and its other fields are empty.
"""

from enum import Enum
from typing import ClassVar


class SpecmeshError(Exception):
    """Base of all errors raised on purpose; `code` is what clients of the API know it by, OpenAI's where it has it.
    what: is wrong. remedy: what to do, where the sentence says so."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str | None] = None

    def __init__(self, what: str = "", remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what, self.remedy = what, remedy


class ConfigError(SpecmeshError):
    """Settings, model files or addresses of this side are wrong; `what` says which."""

    exit_code = 78


class InsecureKeys(ConfigError):
    """Keys that others can read or change: nothing is started with them."""

    exit_code = 77


class NotThereYet(ConfigError):
    """A daemon needs something that this machine may have later: under a service manager, or with
    --wait, it waits for that. `what` names it."""

    @classmethod
    def of(cls, what: str, remedy: str) -> "NotThereYet":
        """Name the remedy, and the option that waits."""
        return cls(what, f"{remedy}, or give --wait where it comes later")


class EngineError(SpecmeshError):
    """A model engine failed while running."""

    code = "engine_failed"


class ChildFailed(EngineError):
    """A process of ours that was to look at something ended, or took too long or too much."""


class ChildLate(ChildFailed):
    """A process of ours took longer than it was given."""


class RequestError(SpecmeshError):
    """A request that this model or daemon can never serve; `param` is the field it is about, where it is one."""

    exit_code = 2

    def __init__(self, what: str = "", param: str | None = None, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.param = param


class PromptTooLong(RequestError):
    """The prompt does not fit into the context with room for one token."""

    code = "context_length_exceeded"
    prompt_tokens: int | None = None
    context: int | None = None

    @classmethod
    def of(cls, prompt_tokens: int, context: int, *, least: bool = False) -> "PromptTooLong":
        """In the words that clients look for. least: there may be more tokens."""
        count = f"at least {prompt_tokens}" if least else str(prompt_tokens)
        most = f"This model's maximum context length is {context} tokens"
        what = f"{most}, and your prompt has {count} tokens"
        error = cls(what, "prompt", "shorten it or start the verifier with a larger --ctx")
        error.prompt_tokens, error.context = prompt_tokens, context
        return error


class MissingField(RequestError):
    """A field without which a request asks for nothing is missing or empty."""

    code = "missing_required_parameter"


class NoSuchModel(RequestError):
    """None of a drafter's verifiers has a model of that name."""

    code = "model_not_found"
    name: str | None = None

    @classmethod
    def of(cls, name: str) -> "NoSuchModel":
        """Say which name it was, and where the others are."""
        error = cls(
            f"no model {name[:200]} is served here", "model", "see `specmesh ps`, or /v1/models"
        )
        error.name = name
        return error


class NoSuchText(RequestError):
    """Nobody here has a text of that name: it ended, was cancelled, or was kept long enough."""

    code = "text_not_found"

    def __init__(self, what: str = "") -> None:
        meaning = "no text of that name is here: its time was over, it was cancelled, or it belongs to another key"
        super().__init__(what or meaning, "resume")


class NotOffered(RequestError):
    """This daemon does not do that; the message says who may."""

    code = "not_offered"


class DaemonUnreachable(SpecmeshError):
    """No daemon answers at the sockets tried, or what it needs to answer is not there. address: whose it is, or was."""

    exit_code = 69
    code = "verifier_unreachable"

    def __init__(self, what: str = "", remedy: str = "", address: str = "") -> None:
        super().__init__(what, remedy)
        self.address = address


class WentAway(DaemonUnreachable):
    """The daemon went away while answering, or is about to: who asked may go on with it when it is back."""

    code = "server_went_away"


class Refused(SpecmeshError):
    """Whoever asks may not."""

    exit_code = 77


class WrongCode(Refused):
    """What the other side said of itself cannot be read: it had another pairing code."""


class Busy(SpecmeshError):
    """The daemon cannot serve now and may in a moment."""

    exit_code = 75
    code = "server_busy"


class Starting(Busy):
    """The daemon cannot serve yet: it starts, or loads its model."""

    code = "server_starting"


class PullError(SpecmeshError):
    """A model could not be brought here; the next attempt goes on with what came."""

    exit_code = 69


class InternalError(SpecmeshError):
    """A defect of specmesh, met while answering: the log has it."""

    code = "internal_error"

    def __init__(self, what: str = "internal error: see the daemon's log") -> None:
        super().__init__(what)


class LocalProtocolError(SpecmeshError):
    """This side was about to break the protocol: a defect of specmesh."""


class InvalidTransition(LocalProtocolError):
    """`what` is in `state` and was to become `to`, which its table of states does not have."""

    def __init__(self, what: str, state: Enum, to: Enum) -> None:
        super().__init__(f"a {what} that is {state.value} cannot become {to.value}")
        self.what, self.state, self.to = what, state, to


class RemoteProtocolError(SpecmeshError):
    """The peer broke the protocol."""


class FrameError(RemoteProtocolError):
    """Bytes from a peer that are not a frame. `reason` is one of length, magic, checksum, version, kind, count, body
    and labels the rejection counter; `seen` is the offending value."""

    def __init__(self, reason: str, seen: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.seen = seen

    def __str__(self) -> str:
        return f"not a frame: bad {self.reason} ({self.seen!r})"


class EndLost(RemoteProtocolError):
    """The peer ended a text of `length` tokens, of which `came` had come."""

    came: int | None = None
    length: int | None = None

    @classmethod
    def of(cls, came: int, length: int) -> "EndLost":
        """Say how much came, and what to do."""
        what = f"the end of the text was lost on its way from the verifier ({came} of {length} tokens came)"
        error = cls(what, "ask again")
        error.came, error.length = came, length
        return error
