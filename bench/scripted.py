"""Run a verifier whose engine plays the script of script.py, as bench/agents.py needs it.

    python bench/scripted.py --conversations DIR [OPTIONS OF `specmesh verifier`]

All but the engine is as usual: the bundled target's tokenizer, a chat template, its form of calls,
their grammar, sampling, HTTP. The engine has the tokens of the script's answer only, and computes
nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

import numpy as np
from command_line import Options
from numpy.typing import NDArray
from script import ANSWER, TEMPLATE, TITLE, answer

from specmesh.cli import main as command
from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.engines import load
from specmesh.engines.base import Capabilities, EngineInfo, Progress, Sequences, Unthreaded
from specmesh.engines.chat_template import template_renderer
from specmesh.engines.llama.model import LlamaModel
from specmesh.engines.tokenizer import ChosenTemplate
from specmesh.errors import EngineError

LOGIT = 40.0
"""The script's token is certain at every temperature that agents ask for."""
N_BATCH = 4096
N_CTX = 200_000
"""Tokens of a sequence: prompts of agents have tens of thousands of the bundled vocabulary."""


class Script:
    """The answers to conversations; each new one is a file of `folder`.

    fails: there is an error at the first answer that calls a tool or edits a file.
    """

    def __init__(self, folder: Path, *, fails: bool) -> None:
        self._folder = folder
        self._answers: dict[str, str] = {}
        self._fails = fails

    def answer(self, conversation: str) -> str:
        """Return the answer to a conversation. Raises EngineError once if it is to fail."""
        known = self._answers.get(conversation)
        if known is not None:
            return known
        new = answer(conversation)
        if new != TITLE and self._fails:
            self._fails = False
            raise EngineError("the script begins with an error")
        self._answers[conversation] = new
        file = self._folder / f"{len(self._answers)}.txt"
        file.write_text(f"{conversation}{ANSWER}{new}", encoding="utf-8")
        return new


class ScriptedVerifier(Unthreaded):
    """A target model whose next token is the next one of the script's answer."""

    def __init__(self, settings: ModelSettings, progress: Progress, script: Script) -> None:
        """Load the model for its vocabulary."""
        self._model = LlamaModel(settings, progress)
        self._script = script
        chosen = ChosenTemplate(renderer=template_renderer(), source=TEMPLATE)
        self.tokenizer = self._model.tokenizer(chosen)
        self._pieces = self._model.vocabulary.pieces
        self._end = min(self._model.vocabulary.end_ids)
        self.info = EngineInfo(
            model="scripted",
            n_ctx=N_CTX,
            n_batch=N_BATCH,
            max_sessions=settings.max_sessions,
            backend="a script",
            capabilities=Capabilities(reuse="copied"),
            bos=self._model.bos,
        )
        count = len(self._pieces)
        self._sequences = Sequences(settings.max_sessions, N_CTX, count, N_BATCH)
        self._ids: list[list[int]] = [[] for _ in range(settings.max_sessions)]

    def close(self) -> None:
        """Free the model."""
        self.tokenizer.close()
        self._model.close()

    def carry_out(self, order: KVOrder) -> int:
        """Carry out an order as `Engine.carry_out`."""
        match order:
            case KVCut():
                kept = self._sequences.cut(order)
                del self._ids[order.seq][kept:]
            case KVCopy():
                self._sequences.check_copy(order)
                self._ids[order.seq] = self._ids[order.source][: order.length]
                self._sequences.lengths[order.seq] = order.length
            case KVOffload() | KVSave() | KVDrop() | KVNarrow():
                pass
            case _:
                assert_never(order)
        return self._sequences.held(order.seq)

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        """Return logits of LOGIT at the script's token and 0.0 elsewhere."""
        self._sequences.check_step(spans)
        try:
            return self._rows(spans)
        except EngineError:  # as it is agreed, the sequences of the step are empty then
            for span in spans:
                self.carry_out(KVCut(span.seq, 0))
            raise

    def _rows(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        logits: list[NDArray[np.float32] | None] = []
        for span in spans:
            held = self._ids[span.seq]
            rows: NDArray[np.float32] | None = None
            if span.logits:
                rows = np.zeros((len(span.ids), len(self._pieces)), np.float32)
                for index in range(len(span.ids)):
                    before = span.ids[: index + 1]
                    rows[index, self._next([*held, *before])] = LOGIT
            logits.append(rows)
            held.extend(span.ids)
            self._sequences.lengths[span.seq] = len(held)
        return logits

    def _next(self, ids: Sequence[int]) -> int:
        """Return the token after a text; the end if the text leaves the script."""
        text = b"".join([self._pieces[token] for token in ids]).decode("utf-8", "replace")
        conversation, begins, written = text.rpartition(ANSWER)
        whole = self._script.answer(conversation) if begins else ""
        if not whole.startswith(written) or whole == written:
            return self._end
        rest = whole.removeprefix(written)
        return self.tokenizer.encode(rest, special=False)[0]


def main() -> None:
    """Run `specmesh verifier` with this engine."""
    parser = Options(__doc__)
    parser.add_argument(
        "--conversations", type=Path, required=True, help="a folder for each answered conversation"
    )
    parser.switch("--fails", "begin the task with an error")
    options, others = parser.parse_known_args()
    script = Script(options.conversations, fails=options.fails)

    def scripted(settings: ModelSettings, progress: Progress) -> ScriptedVerifier:
        return ScriptedVerifier(settings, progress, script)

    load.load_verifier = scripted
    command(["verifier", *others])


if __name__ == "__main__":
    main()
