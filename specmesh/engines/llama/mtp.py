"""The target's own NextN layers as a draft model: `MtpDrafter`.

A NextN layer computes a draft of the id that follows from an id and from the hidden state of the
id before it. Row p of its memory is made of the id at position p and of the target's hidden state
at p - 1; its logits are those of the id at p + 1. The row of position 0 has a hidden state of
zeros.

Behind the committed text the target has no hidden states yet. There the layer goes on with its
own: one layer is repeated, or several are chained, each of which drafts one place further. Rows
of its own states are made again from the target's once those are known.

Kinds of heads:

- One layer: row by row.
- Chained layers: each has its own memory of the same rows, so the rows of the text are decoded by
  every layer, and each draft decodes the last row of the text and all drafts anew, by its layer.

llama.cpp answers mistakes in this with worse drafts, with rows of another step, or by ending the
process. So each row's hidden state is found by position and id here, and each limit is checked.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Ask, Capabilities, EngineInfo, Sequences, rows_of
from specmesh.engines.llama.cache import CacheSizes, LlamaCache, RowBatch
from specmesh.engines.llama.hidden import KEPT_ROWS, HiddenStates, States
from specmesh.engines.llama.library import extension, keeping_gil
from specmesh.engines.llama.model import LlamaModel
from specmesh.errors import ConfigError, EngineError, NoRoom

_WARM_UP = (0, 1)
_SAME_STATE = 0.02  # most difference that numerics make, as a share of the largest number


@dataclass(slots=True, kw_only=True)
class _Track:
    """A sequence.

    shift: position in the text of its first id.
    begin: position in the text of the first row in memory. ids: of all rows in memory.
    chain: the hidden states of the last of them, which are made again when the target's are known.
    own: the head's own hidden state after the last row; None if it is not known.
    """

    shift: int = 0
    begin: int = 0
    ids: list[int] = field(default_factory=list[int])
    chain: list[States] = field(default_factory=list[States])
    own: States | None = None

    @property
    def end(self) -> int:
        """Return the position after the last row in memory."""
        return self.begin + len(self.ids)

    @property
    def settled(self) -> int:
        """Return the position after the last row that stays as it is."""
        return self.end - len(self.chain)


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The rows of an ask that are to be decoded.

    position: of the first of them. states: a hidden state for each.
    continued: the ask's id follows a draft, and the target has not decoded it.
    layer: the chained layer that drafts.
    """

    ask: Ask
    position: int
    ids: list[int]
    states: States
    continued: bool = False
    layer: int = 0

    @property
    def drafts(self) -> bool:
        """Return True if a draft is wanted."""
        return self.ask.sampler is not None

    @property
    def last(self) -> int:
        """Return the position of the last row."""
        return self.position + len(self.ids) - 1


class HeadCache(LlamaCache):
    """The memory of NextN layers, and decodes into it. Callers check sizes."""

    def __init__(self, model: LlamaModel, sizes: CacheSizes, width: int) -> None:
        super().__init__(model, sizes)
        self._batch = RowBatch(self.lib, sizes.rows, width)
        self._get_own = keeping_gil(extension(), "llama_get_embeddings_nextn", ctypes.c_void_p)
        self._own_address = 0
        self._own: States = np.empty((0, width), np.float32)
        self._outputs = sizes.outputs
        self._seq_pos_min = keeping_gil(self.lib, "llama_memory_seq_pos_min")
        self._n_swa = model.n_swa
        self._width = width
        extension().llama_set_embeddings_nextn(self._handle, True, True)

    def use_layer(self, layer: int) -> None:
        """Have the next decodes run this one of the chained layers."""
        extension().llama_set_nextn_layer_offset(self._handle, layer)

    def decode_rows(self, spans: Sequence[Span], states: Sequence[States]) -> None:
        """Decode spans, with hidden states for the rows of each. Raises EngineError."""
        end = 0
        for block in states:
            begin = end
            end += len(block)
            self._batch.states[begin:end] = block
        assert end == rows_of(spans), "each row has a hidden state"
        self.decode(spans)

    def own_states(self, rows: int) -> States:
        """Return a copy of the heads' own hidden states of the wanted rows of the last decode."""
        address = self._get_own(self._handle)
        if not address:
            raise EngineError("llama.cpp returned no hidden states")
        if address != self._own_address:
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            self._own = np.ctypeslib.as_array(pointer, (self._outputs, self._width))
            self._own_address = address
        return self._own[:rows].copy()

    def cut(self, seq: int, position: int, begin: int) -> bool:
        """Remove the rows from a position on; return False if those before have lost cells.

        begin: position of the first row.
        """
        if not self.remove(seq, position):
            return False
        if not self._n_swa:
            return True
        first = int(self._seq_pos_min(self._memory, seq))
        return first <= max(position - self._n_swa + 1, begin)


class MtpDrafter:
    """The NextN layers of a loaded target, `DraftEngine`.

    Its sequences are the target's own. It has the hidden states of the target's newest step, and of
    KEPT_ROWS rows before. Where some are missing, a sequence begins anew behind them: it drafts
    worse then, and nothing else.

    layers: that draft one after the other.
    """

    def __init__(
        self,
        model: LlamaModel,
        cache: LlamaCache,
        sizes: CacheSizes,
        layers: int,
        info: EngineInfo,
    ) -> None:
        """Reserve memory beside the target's. Raises ConfigError.

        cache: the target's. sizes: of that cache. layers: that draft one after the other.
        info: the target's.
        """
        self.vocabulary: Vocabulary | None = model.vocabulary
        self.layers = layers
        cells = sizes.shared_cells
        if cells is None:
            cells = sizes.n_ctx * sizes.max_sessions
        # Each draft of a sequence has as many rows as layers before it.
        rows = max(sizes.rows, sizes.sequences * layers, len(_WARM_UP) + 1)
        own = replace(
            sizes,
            rows=rows,
            outputs=sizes.sequences,
            width=None,
            shared_cells=cells,
            native=0,
            helpers=0,
            swa_full=True,
            head=True,
        )
        self.hidden: HiddenStates = cache.show_hidden(model)
        self._cache = HeadCache(model, own, self.hidden.width)
        self._rows = rows
        self._sequences = Sequences(own.sequences, info.n_ctx + 1, model.n_vocab, rows)
        self._tracks = [_Track() for _ in range(own.sequences)]
        self._whole = False  # a row's own state is right with others before it in its decode
        self.info = replace(
            info,
            model=f"{info.model}, NextN",
            n_ctx=info.n_ctx + 1,
            n_batch=rows,
            n_outputs=None,
            capabilities=Capabilities(
                reuse="copied", batches=True, follows=True, kept_rows=KEPT_ROWS
            ),
            cell_bytes=0,
            host_ids=0,
        )
        try:
            self._warm_up()
        except EngineError as error:
            self.close()
            cache.hidden = None
            raise ConfigError(f"the NextN layers of {model.name} do not run: {error}") from error

    def _warm_up(self) -> None:
        zeros = np.zeros((len(_WARM_UP), self.hidden.width), np.float32)
        own = zeros
        for layer in range(self.layers):
            self._use_layer(layer)
            self._cache.vacate(0)
            self._cache.decode_rows([Span(0, 0, _WARM_UP, logits=False)], [zeros])
            self._cache.decode_rows([Span(0, len(_WARM_UP), (2,), logits=True)], [zeros[:1]])
            finite = np.isfinite(self._cache.logits(1)).all()
            own = self._cache.own_states(1)
            if not finite or not np.isfinite(own).all():
                raise EngineError("they compute no numbers")
        self._use_layer(0)
        self._cache.vacate(0)
        if self.layers == 1:
            self._whole = self._is_whole(own, zeros)
            self._cache.vacate(0)

    def _is_whole(self, own: States, zeros: States) -> bool:
        """Return True if the last row of the warm-up has the same own state in one decode.

        Llama.cpp returns that of another row for some architectures (0c1e5709: Qwen3.5, GLM-4.5).
        """
        before = Span(0, 0, _WARM_UP, logits=False)
        last = Span(0, len(_WARM_UP), (2,), logits=True)
        self._cache.decode_rows([before, last], [zeros, zeros[:1]])
        difference = float(np.abs(self._cache.own_states(1) - own).max())
        return difference <= _SAME_STATE * float(np.abs(own).max())

    # --- DraftEngine

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        """Append and draft as `DraftEngine.predict`.

        The hidden states of the ids before are those of the target's last step, or of one shortly
        before. An ask of one id that the target has not decoded yet continues from the draft
        before it. Without the hidden states for its last id an ask gets no draft.
        """
        spans: list[Span] = []
        for ask in asks:
            spans.append(Span(ask.seq, self._sequences.held(ask.seq), ask.ids, logits=False))
        self._sequences.check_step(spans)
        works: list[_Rows] = []
        for ask in asks:
            rows = self._rows_of(ask)
            if rows is not None:
                works.append(rows)
        try:
            drafts = self._drafted(works)
        except EngineError:
            for ask in asks:
                self._empty(ask.seq)
            raise
        for ask in asks:
            self._sequences.lengths[ask.seq] += len(ask.ids)
        return [drafts.get(ask.seq) for ask in asks]

    def carry_out(self, order: KVOrder) -> int:
        match order:
            case KVCut():
                return self._cut(order)
            case KVCopy():
                self._copy(order)
            case KVOffload(seq, now):
                if now and self._sequences.held(seq):
                    self._lose(seq)
            case KVSave() | KVDrop() | KVNarrow():
                pass
            case _:
                assert_never(order)
        return self._sequences.held(order.seq)

    def use_threads(self, threads: int) -> None:
        self._cache.use_threads(threads)

    @property
    def offloaded_bytes(self) -> int:
        return 0

    def close(self) -> None:
        self._sequences = Sequences(0, 0, 0, 0)
        self._cache.close()

    # --- the rows that an ask needs

    def _rows_of(self, ask: Ask) -> _Rows | None:
        """Return the rows to decode for an ask; None if it has to do without."""
        seq = ask.seq
        held = self._sequences.held(seq)
        if not held:
            self._lose(seq)
            self._tracks[seq].shift = ask.shift
        track = self._tracks[seq]
        position = track.shift + held
        if track.end != position:
            self._lose(seq)
            track.begin = position
        if track.own is not None and self._is_ahead(track, ask):
            return self._continued(track, track.own, ask)
        return self._committed(track, ask)

    def _is_ahead(self, track: _Track, ask: Ask) -> bool:
        """Return True if an ask's id follows a draft, and the target has not decoded that."""
        last = track.end - 1
        start, stop = self.hidden.known(ask.seq, last, track.ids[-1:])
        return len(ask.ids) == 1 and not start <= last < stop

    def _continued(self, track: _Track, own: States, ask: Ask) -> _Rows | None:
        """Return the rows of an ask that goes on with the head's own hidden state."""
        if self.layers == 1:
            return _Rows(
                ask=ask,
                position=track.end,
                ids=[*ask.ids],
                states=own[None],
                continued=True,
            )
        layer = len(track.chain)
        if layer == self.layers:
            # No layer drafts further. The id is not decoded before the text is known.
            track.ids += ask.ids
            track.chain.append(own)
            track.own = None
            return None
        ids = [*track.ids[track.settled - track.begin :], *ask.ids]
        states = np.stack([*track.chain, own])
        return _Rows(
            ask=ask,
            position=track.settled,
            ids=ids,
            states=states,
            continued=True,
            layer=layer,
        )

    def _committed(self, track: _Track, ask: Ask) -> _Rows | None:
        """Return the rows of an ask whose ids are of the text, and those that are made again."""
        seq = ask.seq
        first = track.settled
        settled = first - track.begin
        ids = [*track.ids[settled:], *ask.ids]
        before = track.ids[:settled][-1:]
        end = first + len(ids)
        start, stop = self.hidden.known(seq, first - len(before), [*before, *ids])
        begin = start + 1  # a row needs the hidden state of the position before
        if stop < end - 1 or begin >= end > 1:
            self._lose(seq)
            return None
        missing = max(begin - first, 0)
        if missing > 1 or (missing and first and not before):
            self._lose(seq)
            ids = ids[missing:]
            first = track.begin = begin
            missing = 0
        # The first one of a text has no hidden state, and comes with the second one.
        if not before and first == 1 and not start:
            ids = [*self.hidden.ids(seq, 0, 1), *ids]
            first = track.begin = 0
            missing = 1
        states = np.zeros((len(ids), self.hidden.width), np.float32)
        states[missing:] = self.hidden.rows(seq, first + missing - 1, end - 1)
        return _Rows(ask=ask, position=first, ids=ids, states=states)

    # --- decodes

    def _drafted(self, works: Sequence[_Rows]) -> dict[int, int]:
        """Decode all rows; return the drafts by sequence, none of them if there is no room."""
        asked = {rows.ask.seq for rows in works}
        try:
            return self._tried(works)
        except NoRoom:
            for seq in set(range(len(self._tracks))) - asked:
                self._lose(seq)
            for rows in works:
                self._cache.remove(rows.ask.seq, rows.position)
        try:
            return self._tried(works)
        except NoRoom:
            for seq in asked:
                self._lose(seq)
        return {}

    def _tried(self, works: Sequence[_Rows]) -> dict[int, int]:
        whole = self._whole and sum(len(rows.ids) for rows in works) <= self._rows
        self._read(works, whole=whole)
        by_layer: dict[int, list[_Rows]] = {}
        for rows in works:
            if rows.drafts:
                by_layer.setdefault(rows.layer, []).append(rows)
        drafts: dict[int, int] = {}
        owns: dict[int, States] = {}
        for layer, group in by_layer.items():
            logits = self._decode_last(layer, group, whole=whole)
            states = self._cache.own_states(len(group))
            for rows, row, own in zip(group, logits, states, strict=True):
                drafts[rows.ask.seq] = self._chosen(rows.ask, row)
                owns[rows.ask.seq] = own
        for rows in works:
            self._note(rows, owns.get(rows.ask.seq))
        return drafts

    def _read(self, works: Sequence[_Rows], *, whole: bool) -> None:
        """Decode the rows that no draft is wanted of, in every layer.

        whole: those before a draft are decoded with the one that it is wanted of.
        """
        blocks: list[tuple[Span, States]] = []
        for rows in works:
            count = len(rows.ids) - rows.drafts
            if (rows.continued and self.layers > 1) or (whole and rows.drafts):
                count = 0  # these are decoded together, by one layer
            if count > 0:
                ids = tuple(rows.ids[:count])
                span = Span(rows.ask.seq, rows.position, ids, logits=False)
                blocks.append((span, rows.states[:count]))
            elif self._tracks[rows.ask.seq].end > rows.position:
                self._remove(rows.ask.seq, rows.position)
        for layer in range(self.layers):
            self._use_layer(layer)
            for span, _ in blocks:
                if layer or self._tracks[span.seq].end > span.position:
                    self._remove(span.seq, span.position)
            for part in _parts(blocks, self._rows):
                self._cache.decode_rows(*part)
        self._use_layer(0)

    def _decode_last(self, layer: int, group: Sequence[_Rows], *, whole: bool) -> States:
        """Decode the rows that drafts are wanted of, by one layer; return a row of logits each.

        whole: with the rows before them.
        """
        spans: list[Span] = []
        states: list[States] = []
        for rows in group:
            seq = rows.ask.seq
            before = tuple(rows.ids[:-1])
            if before and (whole or (rows.continued and layer)):
                spans.append(Span(seq, rows.position, before, logits=False))
                states.append(rows.states[:-1])
            spans.append(Span(seq, rows.last, tuple(rows.ids[-1:]), logits=True))
            states.append(rows.states[-1:])
        self._use_layer(layer)
        self._cache.decode_rows(spans, states)
        self._use_layer(0)
        return self._cache.logits(len(group))

    def _chosen(self, ask: Ask, logits: States) -> int:
        sampler = ask.sampler
        assert sampler is not None, "only such asks have logits"
        if sampler.argmax:
            return int(logits.argmax())
        position = self._sequences.lengths[ask.seq] + len(ask.ids) + ask.shift
        return sampler.choose(logits, position)

    def _note(self, rows: _Rows, own: States | None) -> None:
        """Note that the rows of an ask are in memory."""
        track = self._tracks[rows.ask.seq]
        if rows.continued:
            assert track.own is not None, "the ask has continued from it"
            track.ids += rows.ask.ids
            track.chain.append(track.own)
        else:
            track.ids[rows.position - track.begin :] = rows.ids
            track.chain = []
            if self.layers > 1 and rows.drafts:  # only the first layer has the last row
                track.chain = [rows.states[-1]]
        track.own = own

    def _use_layer(self, layer: int) -> None:
        if self.layers > 1:
            assert 0 <= layer < self.layers, "llama.cpp does not check it"
            self._cache.use_layer(layer)

    def _remove(self, seq: int, position: int) -> None:
        if not self._cache.remove(seq, position):
            raise EngineError(f"llama.cpp did not remove rows of sequence {seq}")

    # --- sequences

    def _lose(self, seq: int) -> None:
        """Empty the memory of a sequence, which begins anew with its next rows."""
        self._cache.vacate(seq)
        track = self._tracks[seq]
        track.ids = []
        track.chain = []
        track.own = None
        track.begin = -1

    def _empty(self, seq: int) -> None:
        self._lose(seq)
        self._sequences.lengths[seq] = 0

    def _cut(self, cut: KVCut) -> int:
        kept = self._sequences.cut(cut)
        track = self._tracks[cut.seq]
        end = track.shift + kept
        if not kept or end <= track.begin:
            self._lose(cut.seq)
        elif end < track.end:
            removed = track.end - end
            if not self._cache.cut(cut.seq, end, track.begin):
                self._empty(cut.seq)
                return 0
            del track.ids[len(track.ids) - removed :]
            del track.chain[max(len(track.chain) - removed, 0) :]
            track.own = None
        return kept

    def _copy(self, copy: KVCopy) -> None:
        self._sequences.check_copy(copy)
        self._lose(copy.seq)
        source = self._tracks[copy.source]
        track = self._tracks[copy.seq]
        track.shift = source.shift
        end = source.shift + copy.length
        if source.begin < end <= source.settled:
            self._cache.share(copy.seq, copy.source, end)
            track.begin = source.begin
            track.ids = source.ids[: end - source.begin]
        self._sequences.lengths[copy.seq] = copy.length


def _parts(
    blocks: Sequence[tuple[Span, States]], rows: int
) -> Iterator[tuple[list[Span], list[States]]]:
    """Yield spans and their hidden states in parts of at most so many rows."""
    spans: list[Span] = []
    states: list[States] = []
    room = rows
    for span, block in blocks:
        begin = 0
        while begin < len(span.ids):
            end = min(begin + room, len(span.ids))
            part = span.ids[begin:end]
            spans.append(Span(span.seq, span.position + begin, part, logits=False))
            states.append(block[begin:end])
            room -= end - begin
            begin = end
            if not room:
                yield spans, states
                spans = []
                states = []
                room = rows
    if spans:
        yield spans, states
