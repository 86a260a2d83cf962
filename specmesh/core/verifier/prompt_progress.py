"""How far a prompt is read, for a client that wants to know."""

from specmesh.core.requests import PromptRead

INTERVAL = 0.25  # seconds between two reports, at least
STEP_S = 2.0  # seconds of a step that reads, about: a report comes with its end
FIRST_ROWS = 64  # rows of the first step, whose time is unknown
ROW_UNITS = (256, 64)
"""The rows of a step are a multiple of the first of these that fits, or the last.

On one thread of a CPU steps of 64, 128, 192 or 256 rows read a prompt as fast as those of 512, and
steps of 96, 117, 149 or 200 rows take 1.06 to 1.12 times as long. On two threads that do not always
run at once, 256 rows take 1.05 times as long per row, 128 or 192 rows 1.2 to 1.4 times.
"""


class PromptProgress:
    """Decides when a client gets a report about its prompt, and how long steps may be for it.

    A prompt that is read within INTERVAL gets no report.

    first: the report of its beginning, which is sent only if the first step takes long.
    most_rows: rows of the next step, at most, for all prompts together.
    """

    def __init__(self, total: int, cached: int, now: float) -> None:
        """Begin before the first step.

        total: ids to be read. cached: those that the KV slot held already.
        """
        self.first = PromptRead(total, cached, cached, 0.0)
        self.most_rows = FIRST_ROWS
        self._began = now
        self._reported = now

    def read(self, processed: int, rows: int, started: float, ended: float) -> list[PromptRead]:
        """Take a step that read ids of the prompt; return a report if one is due.

        processed: ids read so far, cached ones included. rows: of the whole step.
        """
        seconds = ended - started
        if seconds > 0:
            # A step is dearer per row than the one before, as its context is longer.
            fitting = min(int(rows * STEP_S / seconds), 2 * rows)
            self.most_rows = _rounded(fitting)
        if ended < self._reported + INTERVAL:
            return []
        self._reported = ended
        return [self.first._replace(processed=processed, seconds=ended - self._began)]


def _rounded(rows: int) -> int:
    """Return the rows of a step that has at most so many, but not fewer than the least multiple."""
    for unit in ROW_UNITS:
        if rows >= unit:
            return rows - rows % unit
    return ROW_UNITS[-1]
