"""How far a prompt is read, for a client that wants to know.

A step that reads may take seconds, and only its end shows how far it has come. So steps are made
shorter for such a client: as many rows as take STEP_S, by the time of the last step. Short steps
read more slowly, also the prompts of others in the same step. So no client gets this unasked.
"""

from specmesh.core.requests import PromptRead

INTERVAL = 0.25  # seconds between two reports, at least
STEP_S = 2.0  # seconds of a step that reads, about: a report comes with its end
PART_ROWS = 256
"""The rows of a step are a multiple of so many.

A CPU that is idle otherwise reads a prompt by steps of 256 rows in 1.05 times the time of steps of
512. On two cores with eight threads to run they took 1.4 times as long, and steps of 64 rows 3.6
times.
"""


class PromptProgress:
    """Decides when a client gets a report about its prompt, and how long steps may be for it.

    A prompt that is read within INTERVAL gets no report.

    first: the report of its beginning, which is sent only if the first step takes long.
    most_rows: rows of the next step, at most, for all prompts together. None: as many as it can
        have. Where PART_ROWS take longer than STEP_S, shorter steps would only cost time.
    """

    def __init__(self, total: int, cached: int, now: float) -> None:
        """Begin before the first step.

        total: ids to be read. cached: those that the KV slot held already.
        """
        self.first = PromptRead(total, cached, cached, 0.0)
        self.most_rows: int | None = PART_ROWS
        self._began = now
        self._reported = now

    def read(self, processed: int, rows: int, started: float, ended: float) -> list[PromptRead]:
        """Take a step that read ids of the prompt; return a report if one is due.

        processed: ids read so far, cached ones included. rows: of the whole step.
        """
        seconds = ended - started
        if seconds > 0:
            fitting = int(rows * STEP_S / seconds)
            self.most_rows = (fitting - fitting % PART_ROWS) or None
        if ended < self._reported + INTERVAL:
            return []
        self._reported = ended
        return [self.first._replace(processed=processed, seconds=ended - self._began)]
