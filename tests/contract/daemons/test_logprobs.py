"""Log-probabilities through the two loops.

The same at either end, with drafts and without, and after either died.
"""

from dataclasses import replace

from harness import PATIENCE
from harness.loops import PROMPT, truth, welcomed
from named_texts import TEXT, Told, back, kept, named, slow

from specmesh.core.requests import Failed, Finished, Request, Scored, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.wire import messages as m

NAME = "cmpl-" + 32 * "b"
COUNT = 30


def wanted(draft_n=4, *, logprobs=2, count=COUNT):
    params = SessionParams(SamplingParams(), count, draft_n=draft_n, stop=(), logprobs=logprobs)
    return Request(None, PROMPT, params, id=NAME, reconnect_timeout=PATIENCE)


def heard(client):
    """Return the events before the end of the text."""
    events = []
    while not isinstance(event := client.next(), Finished):
        assert not isinstance(event, Failed), event
        events.append(event)
    return events


def told(client):
    """Return all ids and their log-probabilities, once the text has ended."""
    ids = []
    logprobs = []
    for tokens in heard(client):
        if isinstance(tokens, Tokens):
            assert len(tokens.logprobs) == len(tokens.ids)
            ids += tokens.ids
            logprobs += tokens.logprobs
    return ids, logprobs


def frames(peer):
    """Return the LOGPROBS until DONE by their base; each follows the truth that it is of."""
    found = {}
    known = 0
    while True:
        message = peer.expect(m.Truth, m.Sync, m.Logprobs, m.Done)
        if isinstance(message, m.Done):
            return found
        if isinstance(message, m.Logprobs):
            assert message.base + len(message.chosen) <= known
            found[message.base] = message
        else:
            known = message.base + len(message.ids)


def test_a_drafter_that_takes_a_text_over_has_those_of_all_of_it(bench):
    """The session keeps them: SYNC is followed by them too."""
    verifier = bench.verifier(slow())
    first = bench.dealer()
    order = named(1, NAME, max_tokens=COUNT)
    first.say(replace(order, options=order.options | {"logprobs": 1}))
    assert first.expect(m.Opened).options["logprobs"] == 1
    first.expect(m.Logprobs)
    first.say(m.Bye())
    kept(verifier)
    second = bench.dealer()
    second.say(replace(order, ref=2, adopt=True))
    found = frames(second)
    assert min(found) == len(PROMPT)
    chosen = []
    for base in sorted(found):
        chosen += found[base].chosen
    _, expected = told(verifier.ask(wanted(0)))
    assert chosen == [one.chosen for one in expected if one is not None]


def scores(client, count):
    """Return those of an echoed prompt, which are the second event, before so many ids."""
    events = heard(client)
    scored = events.pop(1)
    assert isinstance(scored, Scored)
    ids = 0
    for event in events:
        assert not isinstance(event, Scored)
        if isinstance(event, Tokens):
            ids += len(event.ids)
    assert ids == count
    return scored.logprobs


def test_an_echoed_prompt_has_them(bench):
    """They are the same at either daemon, and nothing is taken from memory."""
    prompt = PROMPT * 60  # more than one LOGPROBS has
    found = set[tuple[Logprob | None, ...]]()
    for side in bench.pair():
        for count in (0, 4):
            params = replace(wanted(count=count).params, cache_prompt=False, echo=True)
            client = side.ask(Request(None, prompt, params))
            found.add(scores(client, count))
    [scored] = found
    assert len(scored) == len(prompt) - 1
    for at, logprob in enumerate(scored, 1):
        [right] = truth(1, prompt[:at])
        assert logprob.ids[0] == right


def asked_by_drafter(bench):
    """Return a scripted verifier, and a drafter's client that asked for TEXT."""
    router, drafter = welcomed(bench)
    return router, drafter.ask(wanted(logprobs=0, count=len(TEXT)))


def test_ids_that_lack_theirs_are_sent_again(bench):
    """If a verifier dies between TRUTH and LOGPROBS, the next one sends these ids again.

    The client gets each once.
    """
    router, client = asked_by_drafter(bench)
    first = Told(router)
    assert first.order.options["logprobs"] == 0
    first.more(4, logprobs=True)
    first.more(2)
    back(router)
    again = Told(router)
    assert tuple(again.order.ids) == (*PROMPT, *TEXT[:4])
    again.more(len(TEXT), logprobs=True)
    again.done()
    ids, logprobs = told(client)
    assert tuple(ids) == TEXT
    assert logprobs == [Logprob(-float(at)) for at in range(len(TEXT))]


def test_impossible_ones_are_dropped(bench):
    """Ids of no vocabulary and of another session are dropped.

    The text arrives at its end all the same, without them.
    """
    router, client = asked_by_drafter(bench)
    session = Told(router)
    session.more(len(TEXT))
    values = [-1.0] * len(TEXT)
    of_another = m.Logprobs(session=99, base=len(PROMPT), chosen=values)
    no_vocabulary = replace(of_another, session=4, top_ids=[256] * len(TEXT), top=values)
    router.say(no_vocabulary, of_another)
    session.done()
    ids, logprobs = told(client)
    assert tuple(ids) == TEXT
    assert logprobs == [None] * len(TEXT)
