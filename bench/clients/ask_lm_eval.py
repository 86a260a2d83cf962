"""The evaluation harness lm-eval, by its model `local-completions`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from work import CODE, MODEL, Place


def instance(kind: Any, *arguments: object) -> Instance:
    """Return a request as a task makes it."""
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    os.environ["OPENAI_API_KEY"] = place.key
    url = f"{place.url}/completions"
    texts = LocalCompletionsAPI(model=MODEL, base_url=url, tokenizer_backend=None)
    settings = {"until": ["\n\n"], "max_gen_toks": 16}
    (text,) = texts.generate_until([instance("generate_until", CODE, settings)])
    yield "generate_until", text
    scorer = LocalCompletionsAPI(
        model=MODEL, base_url=url, tokenizer_backend="remote", auth_token=place.key, max_retries=1
    )
    good = instance("loglikelihood", CODE, "    return a + b")
    bad = instance("loglikelihood", CODE, "zebra")
    (likely, _), (unlikely, _) = scorer.loglikelihood([good, bad])
    assert unlikely < likely < 0, (unlikely, likely)
    yield "loglikelihood", str(likely)
    ((score, _),) = scorer.loglikelihood([instance("loglikelihood", "", CODE)])
    yield "loglikelihood of a whole text", str(score)
    (rolling,) = scorer.loglikelihood_rolling([instance("loglikelihood_rolling", CODE)])
    yield "loglikelihood_rolling", str(rolling)
