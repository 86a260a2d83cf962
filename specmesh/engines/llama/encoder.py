"""llama.cpp's tokenizer: text to ids, and the bytes of each id."""

import ctypes
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from specmesh.core.text.tool_formats import TOOL_MARKS
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import bytes_of
from specmesh.engines.llama.library import keeping_gil, plain_function
from specmesh.engines.text_coverage import NO_LIMIT, TextCoverage, bytes_lost
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

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text as `Encoder.encode`."""
        raw = bytes_of(text)
        with self._in_use():
            if len(raw) <= SHORT_TEXT:
                return self._tokenize(raw, special)
            return self._tokenize_deeply(raw, special)

    def prepare(self) -> None:
        """Look now at what the first long text would wait for."""
        with self._in_use():
            _ = self._coverage

    @cached_property
    def _coverage(self) -> TextCoverage:
        return _coverage_of(self._lib, self._vocab, self.vocabulary)

    def least_ids(self, text: str) -> int:
        """Return a lower bound of the number of ids, in next to no time."""
        if len(text) <= SHORT_TEXT:  # its ids are counted as fast
            return 0
        with self._in_use():
            return self._coverage.least_ids(text)

    def special_text(self, token: int) -> str:
        """Return a special token as a template writes it; empty for an id that does not exist."""
        if not 0 <= token < len(self.vocabulary):
            return ""
        piece = _Pieces(self._lib, self._vocab).special(token)
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


def _coverage_of(lib: Any, vocab: Any, vocabulary: Vocabulary) -> TextCoverage:
    """Return the coverage of a vocabulary of llama.cpp."""
    kind: int = lib.llama_vocab_type(vocab)
    if kind not in (lib.LLAMA_VOCAB_TYPE_SPM, lib.LLAMA_VOCAB_TYPE_BPE):
        return NO_LIMIT
    spm = kind == lib.LLAMA_VOCAB_TYPE_SPM
    swallows = lib.LLAMA_TOKEN_ATTR_LSTRIP | lib.LLAMA_TOKEN_ATTR_RSTRIP
    attributes_of = plain_function(lib, "llama_vocab_get_attr", ctypes.c_int)
    address = _address(vocab)
    pieces = _Pieces(lib, vocab)
    longest = 0
    for token, piece in enumerate(vocabulary.pieces):
        if attributes_of(address, token) & swallows:
            return NO_LIMIT
        text = piece or pieces.special(token)
        size = len(text)
        if spm:
            # SentencePiece has a character of three bytes for a blank, as a text may.
            size += 2 * text.count(b" ")
        if size > longest:  # noqa: PLR1730 - half the time of `max`
            longest = size
    return TextCoverage(longest, bytes_lost(vocabulary.pieces))


def _vocabulary(lib: Any, vocab: Any) -> Vocabulary:
    """Read the bytes of all ids.

    Control tokens have none, except marks of tool calls: some models have control tokens for
    these, but they are text.
    """
    is_end = plain_function(lib, "llama_vocab_is_eog", ctypes.c_bool)
    address = _address(vocab)
    texts = _Pieces(lib, vocab)
    ends = set[int]()
    pieces = list[bytes]()
    for token in range(lib.llama_vocab_n_tokens(vocab)):
        piece = texts.shown(token)
        if is_end(address, token):
            ends.add(token)
        elif not piece:
            mark = texts.special(token)
            if mark.decode("utf-8", "replace") in TOOL_MARKS:
                piece = mark
        pieces.append(piece)
    return Vocabulary(tuple(pieces), frozenset(ends))


class _Pieces:
    """The bytes of ids, one after the other."""

    def __init__(self, lib: Any, vocab: Any) -> None:
        self._piece = plain_function(lib, "llama_token_to_piece", ctypes.c_int32)
        self._vocab = _address(vocab)
        self._size = _PIECE_BYTES
        self._buffer: Any = ctypes.create_string_buffer(self._size)
        self._start = ctypes.c_void_p(ctypes.addressof(self._buffer))

    def shown(self, token: int) -> bytes:
        """Return the bytes of an id; none of a control token."""
        return self._read(token, special=False)

    def special(self, token: int) -> bytes:
        """Return the bytes of an id, also of a control token."""
        return self._read(token, special=True)

    def _read(self, token: int, *, special: bool) -> bytes:
        place = (self._start, self._size, 0)
        length = self._piece(self._vocab, token, *place, special)
        if length < 0:
            self._grow(-length)
            return self._read(token, special=special)
        piece: bytes = self._buffer[:length]
        return piece

    def _grow(self, size: int) -> None:
        """Take a larger buffer, of the size that llama.cpp has asked for."""
        self._size = size
        self._buffer = ctypes.create_string_buffer(size)
        self._start = ctypes.c_void_p(ctypes.addressof(self._buffer))


def _address(vocab: Any) -> ctypes.c_void_p:
    """Return the pointer to a vocabulary as `plain_function` takes it."""
    return ctypes.cast(vocab, ctypes.c_void_p)
