"""The class that vLLM makes for `custom_class`: one in each worker, asked after each step.

An exception of it, or an answer that vLLM does not expect, ends the whole server. So nothing here
raises. What cannot be done is logged once, and from then on the answer is that there are no drafts.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import Any

import structlog

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import NotThereYet, SpecmeshError
from specmesh.vllm.compatibility import fault_of, fault_of_call, installed_version
from specmesh.vllm.draft_service import DraftService
from specmesh.vllm.lines import configure
from specmesh.vllm.served_model import place_of, served_model
from specmesh.vllm.settings import ProposerSettings, read_settings, unknown_variables
from specmesh.vllm.vocabulary import vocabulary_of

log = structlog.get_logger("specmesh.vllm")

BIND_AGAIN_S = 5.0  # seconds between two tries to open the port


class Proposer:
    """Drafts of drafter daemons, and of the texts themselves, for a vLLM server.

    service: the port for drafters; None where nothing is drafted.
    """

    def __init__(self, vllm_config: Any, *_: Any, **options: Any) -> None:
        """Begin without a port: vLLM has not loaded its model yet. Raises nothing.

        options: `settings` and `vocabulary` take the place of those that would be read, in tests.
        """
        self.service: DraftService | None = None
        self._config = vllm_config
        self._settings: ProposerSettings | None = options.get("settings")
        self._vocabulary: Vocabulary | None = options.get("vocabulary")
        self._most_rows = 0  # a call with more of them gets no drafts
        self._called = False
        self._closed = Event()

    def load_model(self, *_: Any, **__: Any) -> None:
        """Open the port for drafters, now that vLLM has loaded its model. Raises nothing."""
        self._try(self._load)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any = None,
        token_ids_cpu: Any = None,
        *_: Any,
        **__: Any,
    ) -> list[list[int]]:
        """Return the drafts of each row for vLLM's next step; empty lists where there are none.

        sampled_token_ids: ids that each row got in the step before.
        num_tokens_no_spec: int32 (rows or more,), the length of each row.
        token_ids_cpu: int32 (rows or more, most ids), the ids of each row.
        """
        service = self.service
        try:
            count = len(sampled_token_ids)
            if service is None or count > self._most_rows or not count:
                return [[] for _ in range(count)]
            if not self._called:
                self._look_at_call(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            lengths = num_tokens_no_spec[:count].tolist()
            return service.drafting.propose(sampled_token_ids, lengths, token_ids_cpu)
        except Exception as error:  # noqa: BLE001 - an exception here would end vLLM's engine
            self._give_up(f"{type(error).__name__}: {error}")
            return [[] for _ in sampled_token_ids]

    def close(self) -> None:
        """Close the port; vLLM itself never does."""
        self._closed.set()
        service = self.service
        self.service = None
        if service is not None:
            service.close()

    def _try(self, work: Callable[[], object]) -> None:
        """Do some work, and give up if that fails."""
        try:
            work()
        except SpecmeshError as error:
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, vLLM goes on without drafts
            self._give_up(f"{type(error).__name__}: {error}")

    def _load(self) -> None:
        settings = self._settings or read_settings()
        configure(settings.log_level)
        unknown = unknown_variables()
        if unknown:
            log.warning("unknown_variables", names=", ".join(unknown), see="docs/vllm.md")
        fault = fault_of(installed_version(), self._config)
        if fault:
            self._give_up(fault)
            return
        place = place_of(self._config)
        if not place.answers:
            return  # vLLM uses the drafts of the first worker of a model
        vocabulary = self._vocabulary or vocabulary_of(self._config)
        self._most_rows = settings.rows
        service = partial(DraftService, settings, served_model(self._config), vocabulary, place)
        try:
            self.service = service()
        except NotThereYet as error:
            log.warning("waits", why=str(error), meaning="vLLM goes on, and drafts begin later")
            later = partial(self._open_later, service)
            Thread(target=self._try, args=(later,), daemon=True).start()

    def _open_later(self, service: Callable[[], DraftService]) -> None:
        """Open the port as soon as its address, or the folder of keys, is there."""
        while not self._closed.wait(BIND_AGAIN_S):
            with suppress(NotThereYet):
                self.service = service()
                break
        if self._closed.is_set():
            self.close()

    def _look_at_call(self, sampled: object, lengths: Any, ids: Any) -> None:
        """Raise TypeError if vLLM calls in a way that is not known."""
        self._called = True
        fault = fault_of_call(sampled, lengths, ids)
        if fault:
            raise TypeError(fault)

    def _give_up(self, why: str) -> None:
        """Draft nothing from now on. Raises nothing: it is the last that is done about an error."""
        service = self.service
        self.service = None
        with suppress(Exception):
            if service is not None:
                # It waits for a thread, and vLLM's step does not.
                Thread(target=service.close, daemon=True).start()
            configure("info")  # settings that cannot be read name no level
            log.error("no_drafts", why=why, meaning="vLLM goes on without drafts of specmesh")
