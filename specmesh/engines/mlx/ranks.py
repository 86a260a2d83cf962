"""The ranks of `--distributed`: rank 0 verifies, the others compute their parts of each step.

MLX's group carries what the parts compute for each other. What is to be computed rank 0 tells by a
connection to each of the others: to wait for MLX's group takes a tenth of a core, and they wait for
hours. The group itself tells the port, and a secret that a connection begins with.
"""

import json
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Any

import mlx.core as mx
import structlog

from specmesh.core.events import Span
from specmesh.core.fields import Json
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.engines.mlx.launch import host_of_first
from specmesh.engines.mlx.model import mapped
from specmesh.engines.mlx.target_sequences import Rows, TargetSequences
from specmesh.errors import ConfigError, EngineError

_log = structlog.get_logger("specmesh.engines.mlx")

_PATIENCE = 60.0  # seconds that a rank may take to connect
_SECRET_WORDS = 8  # of 16 bits
_ORDERS = {kind.__name__: kind for kind in (KVCut, KVCopy, KVDrop, KVNarrow, KVOffload, KVSave)}


def join() -> Any:
    """Return MLX's group of all ranks. Raises ConfigError."""

    def refused(reason: str) -> ConfigError:
        return ConfigError(f"--distributed: MLX has no group here ({reason})", "see docs/mlx.md")

    with mapped(refused):
        return mx.distributed.init(strict=True)


def _tell_all(group: Any, numbers: Sequence[int]) -> list[int]:
    """Return the numbers of rank 0; those of the others are zeros."""
    told: Any = mx.distributed.all_sum(mx.array(list(numbers)), group=group, stream=mx.cpu)
    return [int(number) for number in told.tolist()]


def _secret_bytes(words: Sequence[int]) -> bytes:
    return b"".join(word.to_bytes(2, "big") for word in words)


# --- rank 0


class Leader:
    """The connections of rank 0 to the others. If one is lost, this process is asked to end."""

    def __init__(self, group: Any) -> None:
        """Wait for all other ranks. Raises ConfigError."""
        self._closing = False
        self._others: list[socket.socket] = []
        with socket.create_server((host_of_first(), 0)) as listener:
            words = [secrets.randbits(16) for _ in range(_SECRET_WORDS)]
            _tell_all(group, [listener.getsockname()[1], *words])
            listener.settimeout(_PATIENCE)
            while len(self._others) < group.size() - 1:
                self._accept(listener, _secret_bytes(words))
        for other in self._others:
            threading.Thread(target=self._watch, args=(other,), name="rank", daemon=True).start()

    def _accept(self, listener: socket.socket, secret: bytes) -> None:
        """Take a connection that begins with the secret."""
        try:
            other, _ = listener.accept()
        except TimeoutError:
            raise ConfigError("--distributed: not all ranks have come", "see their logs") from None
        other.settimeout(_PATIENCE)
        with suppress(OSError):
            given = other.recv(len(secret), socket.MSG_WAITALL)
            if secrets.compare_digest(given, secret):
                other.settimeout(None)
                other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._others.append(other)
                return
        other.close()

    def tell(self, message: Json) -> None:
        """Send a message to all others. Raises EngineError if one is gone."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            for other in self._others:
                other.sendall(line)
        except OSError as error:
            raise EngineError(f"a rank of MLX's group is gone: {error.strerror}") from error

    def _watch(self, other: socket.socket) -> None:
        """End this process once a rank is gone, which sends nothing."""
        with suppress(OSError):
            while other.recv(1):
                pass
        self.give_up("a rank of MLX's group has ended")

    def give_up(self, reason: str) -> None:
        """Ask this process to end, unless it does already: the ranks no longer go together."""
        if not self._closing:
            self._closing = True
            _log.error("rank_lost", meaning=f"{reason}: this verifier ends too")
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """Have all others end."""
        self._closing = True
        for other in self._others:
            with suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)
            other.close()


class LeadingSequences(TargetSequences):
    """The sequences of rank 0, which has the others do the same as it does."""

    def __init__(self, module: Any, width: int | None, group: Any) -> None:
        super().__init__(module, width)
        self._leader = Leader(group)

    def reserve(self, count: int) -> None:
        self._leader.tell({"reserve": count})
        super().reserve(count)

    def decode(self, spans: Sequence[Span]) -> list[Rows]:
        try:
            self._leader.tell({"decode": [list(span) for span in spans]})
            return super().decode(spans)
        except Exception as error:  # whatever MLX or a connection raises
            # The others may wait for this rank's part, and what they hold now is not known.
            self._leader.give_up(str(error))
            raise

    def carry_out(self, order: KVOrder) -> int:
        self._leader.tell({"order": [type(order).__name__, *astuple(order)]})
        return super().carry_out(order)

    def clear(self, seq: int) -> None:
        with suppress(EngineError):  # then this process ends
            self._leader.tell({"clear": seq})
        super().clear(seq)

    def close(self) -> None:
        self._leader.close()
        super().close()


# --- the other ranks


def messages(group: Any) -> Iterator[Json]:
    """Yield what rank 0 tells, until it ends."""
    port, *words = _tell_all(group, [0] * (1 + _SECRET_WORDS))
    address = (host_of_first(), port)
    with socket.create_connection(address, timeout=_PATIENCE) as connection:
        connection.sendall(_secret_bytes(words))
        connection.settimeout(None)
        with suppress(ConnectionError), connection.makefile("rb") as lines:
            for line in lines:
                yield json.loads(line)


def obey(targets: TargetSequences, message: Json) -> None:
    """Do what rank 0 does. Raises what MLX raises in a step."""
    told: dict[str, Any] = message
    [(what, details)] = told.items()
    match what:
        case "reserve":
            targets.reserve(details)
        case "decode":
            targets.decode([_span(*span) for span in details])
        case "order":
            name, *fields = details
            order: Any = _ORDERS[name]
            with suppress(Exception):  # as at rank 0, which then has the sequence cleared
                targets.carry_out(order(*fields))
        case "clear":
            targets.clear(details)
        case _:
            raise EngineError(f"rank 0 tells what is not known here: {what}")


def _span(seq: int, position: int, ids: list[int], logits: object) -> Span:
    return Span(seq, position, tuple(ids), bool(logits))
