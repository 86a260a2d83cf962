"""Prompts as ids and grammars as constraints, made beside the loop: a long text takes seconds."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from specmesh.core.clients import ClientRequest, EncodedPrompt
from specmesh.core.requests import Request
from specmesh.engines.base import Tokenizer
from specmesh.engines.grammar import Grammars
from specmesh.errors import EngineError, SpecmeshError


class PromptEncoder:
    """Encodes one prompt after the other, on a thread; each goes to `deliver`, on that thread.

    Those with a grammar have another thread: compiling holds up no others.
    """

    def __init__(self, engine: Tokenizer, deliver: Callable[[EncodedPrompt], None]) -> None:
        self._engine, self._deliver = engine, deliver
        self._grammars = Grammars(engine.vocabulary)
        self._plain, self._guided = ThreadPoolExecutor(1, "prompts"), ThreadPoolExecutor(1, "grammars")

    def add(self, asked: ClientRequest) -> Callable[[], bool]:
        """Begin to encode a prompt; return what cancels that. One under way is delivered all the same."""
        pool = self._plain if asked.request.params.grammar is None else self._guided
        return pool.submit(lambda: self._deliver(self._encoded(asked))).cancel

    def close(self, timeout: float) -> bool:
        """Encode no more; return True if the prompts under way were done within `timeout` seconds."""
        self._grammars.close()
        under_way = wait([pool.submit(int) for pool in (self._plain, self._guided)], timeout).not_done
        for pool in (self._plain, self._guided):
            pool.shutdown(wait=False, cancel_futures=True)
        return not under_way

    def _encoded(self, asked: ClientRequest) -> EncodedPrompt:
        request = asked.request
        try:
            ids, grammar = prompt_ids(self._engine, request), request.params.grammar
            return EncodedPrompt(asked, ids, self._grammars.compile(grammar) if grammar is not None else None)
        except SpecmeshError as error:
            return EncodedPrompt(asked, error=error)
        except Exception as error:  # noqa: BLE001  (whatever it is, a client waits for an answer)
            reason = f"the prompt could not be encoded ({type(error).__name__}: {error})"
            return EncodedPrompt(asked, error=EngineError(reason))


def prompt_ids(engine: Tokenizer, request: Request) -> Sequence[int]:
    """Return the ids to continue, by the target's tokenizer and chat template; safe from any thread.

    An empty text, where the target begins none with a token of its own, is what ends others, as at OpenAI's. Raises
    RequestError for text that cannot be encoded, and for a chat where the target has no template.
    """
    if request.prompt_ids is not None:
        return request.prompt_ids
    if not request.messages:
        return engine.encode(request.prompt or "") or sorted(engine.vocabulary.end_ids)[:1]
    return engine.encode_chat(request.messages, continued=request.continued)
