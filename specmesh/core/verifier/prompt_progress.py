"""How far a prompt is read, for a client that wants to know."""

from specmesh.core.requests import PromptRead

INTERVAL = 0.25  # seconds between two reports, at least
STEP_S = 1.5  # seconds of a step that reads, about: a report comes with its end
FIRST_ROWS = 64  # rows of the first step, whose time is unknown
ROWS = 64
"""The rows of a step are a multiple of so many.

A CPU reads a prompt as fast by steps of 64, 128, 192 or 256 rows as by those of 512 while it has
nothing else to do; but by steps of 96, 117, 149 or 200 rows in 1.06 to 1.12 times the time. Where
its threads do not run at once, each step costs up to 0.2 s more. So steps are not shorter.
"""


class PromptProgress:
    """Decides when a client gets a report about its prompt, and how long steps may be for it.

    A prompt that is read within INTERVAL gets no report.

    most_rows: rows of the next step, at most, for all prompts together.
    """

    def __init__(self, total: int, cached: int) -> None:
        """Begin before the first step.

        total: ids to be read. cached: those that the KV slot held already.
        """
        self.most_rows = FIRST_ROWS
        self._total = total
        self._cached = cached
        self._began: float | None = None
        self._reported = 0.0

    def read(self, processed: int, rows: int, started: float, ended: float) -> list[PromptRead]:
        """Take a step that read ids of the prompt; return a report if one is due.

        processed: ids read so far, cached ones included. rows: of the whole step.
        """
        if self._began is None:
            self._began = started
            self._reported = started
        seconds = ended - started
        if seconds > 0:
            # A step is dearer per row than the one before, as its context is longer.
            fitting = min(int(rows * STEP_S / seconds), 2 * rows)
            self.most_rows = max(fitting - fitting % ROWS, ROWS)
        if ended < self._reported + INTERVAL:
            return []
        self._reported = ended
        report = PromptRead(
            total=self._total,
            cached=self._cached,
            processed=processed,
            seconds=ended - self._began,
        )
        return [report]
