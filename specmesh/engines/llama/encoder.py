"""llama.cpp's tokenizer: text to ids, and the bytes of each id."""

import ctypes
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from specmesh.core.text.tool_formats import TOOL_MARKS
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import bytes_of
from specmesh.engines.llama.library import keeping_gil
from specmesh.errors import EngineError

SHORT_TEXT = 4096
"""Bytes that any thread can tokenize."""

_INSTANT = 256  # bytes that are tokenized in microseconds
_AT_ONCE = 2**16  # ids that are taken from llama.cpp by one call
_PIECE_BYTES = 256


class LlamaEncoder:
    """`Encoder` by llama.cpp, for several threads side by side."""

    def __init__(self, lib: Any, vocab: Any) -> None:
        """Read the vocabulary; vocab: llama.cpp's pointer, valid until `close` has returned."""
        self._lib = lib
        self._vocab = vocab
        # A short text takes less than to get the GIL back from a busy thread.
        self._tokenize_shortly = keeping_gil(lib, "llama_tokenize")
        self._used = threading.Condition()
        self._users = 0  # threads in a call, during which the model is not freed
        self._closed = False
        self.vocabulary = _vocabulary(lib, vocab)
        self._coverage = TextCoverage.of(lib, vocab, self.vocabulary)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text as `Encoder.encode`."""
        raw = bytes_of(text)
        with self._in_use():
            if len(raw) <= SHORT_TEXT:
                return self._tokenize(raw, special)
            return self._tokenize_deeply(raw, special)

    def least_ids(self, text: str) -> int:
        """Return a lower bound of the number of ids, in next to no time."""
        return self._coverage.least_ids(text)

    def special_text(self, token: int) -> str:
        """Return a special token as a template writes it; empty for an id that does not exist."""
        if not 0 <= token < len(self.vocabulary):
            return ""
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        piece = _piece(self._lib, self._vocab, token, buffer, special=True)
        return piece.decode("utf-8", "replace")

    def close(self) -> None:
        """Refuse further texts, and wait until no thread is in a call."""
        with self._used:
            self._closed = True
            self._used.wait_for(lambda: self._users == 0)

    @contextmanager
    def _in_use(self) -> Generator[None]:
        with self._used:
            if self._closed:
                raise EngineError("the model is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._used:
                self._users -= 1
                self._used.notify_all()

    def _tokenize_deeply(self, raw: bytes, special: bool) -> list[int]:
        """Tokenize a long text on a thread with a large stack.

        llama.cpp splits text by regular expressions. For many vocabularies these take some 310
        bytes of stack for each letter of a run: a long run would end the process on a common
        thread. This thread has 1024 bytes for each letter.
        """
        deep = ThreadPoolExecutor(1, "tokens")
        with self._used:  # the size is that of all threads that begin meanwhile
            before = threading.stack_size(2**24 * (1 + len(raw) // 2**14))
            try:
                ids = deep.submit(self._tokenize, raw, special)
            except RuntimeError as error:
                reason = f"no thread could be started to tokenize {len(raw)} bytes ({error})"
                raise EngineError(reason) from error
            finally:
                threading.stack_size(before)
                deep.shutdown(wait=False)
        return ids.result()

    def _tokenize(self, raw: bytes, special: bool) -> list[int]:
        count = len(raw) + 8  # a token has at least one byte; room for the special ones at the ends
        buffer = (self._lib.llama_token * count)()
        tokenize = self._tokenize_shortly if len(raw) <= _INSTANT else self._lib.llama_tokenize
        arguments = (self._vocab, raw, len(raw), buffer, count, special, True)
        written: int = tokenize(*arguments)
        if written < 0:
            raise EngineError(f"llama.cpp could not tokenize a prompt of {len(raw)} bytes")
        ids = list[int]()
        for start in range(0, written, _AT_ONCE):  # other threads run in between
            ids += buffer[start : min(start + _AT_ONCE, written)]
        return ids


@dataclass(frozen=True, slots=True)
class TextCoverage:
    """The amount of text that an id of a vocabulary can stand for.

    longest: most bytes of one id, special tokens as they are written. 0: there is no limit, since
        an id stands for all that is unknown, or a special token swallows blanks.
    lost: bytes that no id stands for.
    """

    longest: int
    lost: bytes

    @classmethod
    def of(cls, lib: Any, vocab: Any, vocabulary: Vocabulary) -> "TextCoverage":
        """Return the coverage of a vocabulary of llama.cpp."""
        kind: int = lib.llama_vocab_type(vocab)
        if kind not in (lib.LLAMA_VOCAB_TYPE_SPM, lib.LLAMA_VOCAB_TYPE_BPE):
            return cls(0, b"")
        swallows = lib.LLAMA_TOKEN_ATTR_LSTRIP | lib.LLAMA_TOKEN_ATTR_RSTRIP
        longest = 0
        lost = set(range(256))
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        for token, piece in enumerate(vocabulary.pieces):
            if lib.llama_vocab_get_attr(vocab, token) & swallows:
                return cls(0, b"")
            if len(piece) == 1:
                lost.discard(piece[0])
            text = piece or _piece(lib, vocab, token, buffer, special=True)
            # SentencePiece has a character of three bytes for a blank. A text may have it too.
            blanks = text.count(b" ") if kind == lib.LLAMA_VOCAB_TYPE_SPM else 0
            longest = max(longest, len(text) + 2 * blanks)
        return cls(longest, bytes(lost))

    def least_ids(self, text: str) -> int:
        """Return a lower bound of the number of ids of a text."""
        if not self.longest:
            return 0
        kept = text.encode("utf-8", "surrogatepass").translate(None, self.lost)
        return -(-len(kept) // self.longest)


def _vocabulary(lib: Any, vocab: Any) -> Vocabulary:
    """Read the bytes of all ids.

    Control tokens have none, except marks of tool calls: some models have control tokens for
    these, but they are text.
    """
    buffer = ctypes.create_string_buffer(_PIECE_BYTES)
    ends = set[int]()
    pieces = list[bytes]()
    for token in range(lib.llama_vocab_n_tokens(vocab)):
        piece = _piece(lib, vocab, token, buffer)
        if lib.llama_vocab_is_eog(vocab, token):
            ends.add(token)
        elif not piece:
            mark = _piece(lib, vocab, token, buffer, special=True)
            if mark.decode("utf-8", "replace") in TOOL_MARKS:
                piece = mark
        pieces.append(piece)
    return Vocabulary(tuple(pieces), frozenset(ends))


def _piece(lib: Any, vocab: Any, token: int, buffer: Any, special: bool = False) -> bytes:
    """Return the bytes of an id; those of control tokens only with `special`."""
    arguments = (vocab, token, buffer, len(buffer), 0, special)
    length = lib.llama_token_to_piece(*arguments)
    if length < 0:  # llama.cpp names the size it needs
        larger = ctypes.create_string_buffer(-length)
        return _piece(lib, vocab, token, larger, special)
    return ctypes.string_at(buffer, length)
