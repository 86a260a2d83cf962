"""The progress of a daemon's start."""

import time

from specmesh.daemons.runtime.notifier import Notifier
from specmesh.daemons.runtime.patience import Patience
from specmesh.terminal import Display


class Loading:
    """The share of a model that is loaded, and the thing that is waited for.

    begun: time of the monotonic clock. Any thread may read and report.
    """

    def __init__(self, notifier: Notifier, patience: Patience) -> None:
        self._notifier = notifier
        self._patience = patience
        self.share = 0.0
        self.begun = time.monotonic()

    @property
    def waiting_for(self) -> str:
        """Return the thing that is waited for; empty if there is none."""
        return self._patience.waiting_for

    def report(self, shown: Display, share: float) -> None:
        """Report the share to the API, to the manager and on a terminal."""
        self.share = share
        self._notifier.loading(share)
        shown.show("loading the model", share, 1.0)
