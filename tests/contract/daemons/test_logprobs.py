"""Log-probabilities through the two loops.

The same at either end, with drafts and without, and after either died.
"""

from dataclasses import replace

from harness import PATIENCE
from harness.loops import PROMPT, Hearing, ScriptedDrafter, truth, until, welcomed
from named_texts import TEXT, Told, back, slow

from specmesh.core.requests import ClientEvent, Failed, Finished, Request, Scored, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.wire import messages as m

NAME = "cmpl-" + 32 * "b"
COUNT = 30


def wanted(draft_n: int | None = 4, *, logprobs: int | None = 2, count: int = COUNT) -> Request:
    params = SessionParams(SamplingParams(), count, draft_n=draft_n, stop=(), logprobs=logprobs)
    return Request(None, PROMPT, params, id=NAME, reconnect_timeout=PATIENCE)


def heard(client: Hearing) -> list[ClientEvent]:
    """Return the events before the end of the text."""
    events: list[ClientEvent] = []
    while not isinstance(event := client.next(), Finished | Failed):
        events.append(event)
    assert isinstance(event, Finished), event
    return events


def told(client: Hearing) -> list[tuple[int, Logprob | None]]:
    """Each id and its log-probability, once the text has ended."""
    found = []
    for tokens in heard(client):
        if isinstance(tokens, Tokens):
            assert len(tokens.logprobs) == len(tokens.ids)
            found += list(zip(tokens.ids, tokens.logprobs, strict=True))
    return found


def frames(peer: ScriptedDrafter) -> dict[int, m.Logprobs]:
    """The LOGPROBS until DONE, by their base; each follows the truth that it is of."""
    found: dict[int, m.Logprobs] = {}
    known = 0
    while not isinstance(message := peer.expect(m.Truth, m.Sync, m.Logprobs, m.Done), m.Done):
        if isinstance(message, m.Logprobs):
            assert message.base + len(message.chosen) <= known
            found[message.base] = message
        elif isinstance(message, m.Truth | m.Sync):
            known = message.base + len(message.ids)
    return found


def test_who_takes_a_text_over_has_those_of_all_of_it(bench):
    """The session keeps them: SYNC is followed by them too."""
    verifier, first = bench.verifier(slow()), bench.dealer()
    options = {"max_tokens": COUNT, "temperature": 0, "draft_n": 0, "logprobs": 1}
    order = m.Open(
        ref=1, prompt="", options=options, ids=list(PROMPT), name=NAME, n_prompt=len(PROMPT)
    )
    first.say(order)
    assert first.expect(m.Opened).options["logprobs"] == 1
    first.expect(m.Logprobs)
    first.say(m.Bye())
    until(lambda: verifier.stats()["sessions"]["kept"] == 1, "it is kept")
    second = bench.dealer()
    second.say(replace(order, ref=2, adopt=True, options=options | {"logprobs": None}))
    found = frames(second)
    chosen = [value for base in sorted(found) for value in found[base].chosen]
    assert min(found) == len(PROMPT)
    assert chosen == [one.chosen for _, one in told(verifier.ask(wanted(0))) if one is not None]


def test_an_echoed_prompt_has_them(bench):
    """They are the same at either daemon, and nothing is taken from memory."""
    found = set[tuple[object, ...]]()
    prompt = PROMPT * 60  # more than one LOGPROBS has
    for side in bench.pair():
        for count in (0, 4):
            params = replace(wanted(count=count).params, cache_prompt=False, echo=True)
            client = side.ask(Request(None, prompt, params))
            events = heard(client)
            [scored] = [event.logprobs for event in events if isinstance(event, Scored)]
            assert isinstance(events[1], Scored)
            assert sum(len(event.ids) for event in events if isinstance(event, Tokens)) == count
            found.add(scored)
    [scored] = found
    right = [truth(1, prompt[:at])[0] for at in range(1, len(prompt))]
    assert [one.ids[0] for one in scored if isinstance(one, Logprob)] == right


def test_ids_that_lack_theirs_are_said_again(bench):
    """If a verifier dies between TRUTH and LOGPROBS, the next one sends these ids again.

    The client gets each once.
    """
    router, drafter = welcomed(bench)
    client = drafter.ask(wanted(logprobs=0, count=len(TEXT)))
    first = Told(router, router.expect(m.Open))
    assert first.order.options["logprobs"] == 0
    first.more(4, logprobs=True).more(2)
    back(router)
    again = Told(router, router.expect(m.Open), 5)
    assert tuple(again.order.ids) == (*PROMPT, *TEXT[:4])
    again.more(len(TEXT), logprobs=True).done()
    assert told(client) == [(token, Logprob(-float(at))) for at, token in enumerate(TEXT)]


def test_what_cannot_be_is_dropped(bench):
    """Ids of no vocabulary and of another session are dropped.

    The text arrives at its end all the same, without them.
    """
    router, drafter = welcomed(bench)
    client = drafter.ask(wanted(logprobs=0, count=len(TEXT)))
    said = Told(router, router.expect(m.Open)).more(len(TEXT))
    logprobs, foreign = [-1.0] * len(TEXT), [256] * len(TEXT)
    router.say(
        m.Logprobs(session=4, base=len(PROMPT), chosen=logprobs, top_ids=foreign, top=logprobs),
        m.Logprobs(session=99, base=len(PROMPT), chosen=logprobs),
    )
    said.done()
    assert told(client) == [(token, None) for token in TEXT]
