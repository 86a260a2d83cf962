"""The API as the `openai` client uses it, over TCP, at a verifier and at a drafter."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from processes import Mesh, command, sim_text
from served import Served, serve

RENDERED = "system: Be brief.\nuser: Hi\nassistant: "


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key or "none", max_retries=0) as made:
        yield made


def test_completion(client: openai.OpenAI):
    answer = client.completions.create(model="any", prompt="once", max_tokens=40, temperature=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (sim_text("once", 40), "length")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 40, 44)
    report = answer.model_extra["specmesh"]["report"]
    assert usage.completion_tokens_details.accepted_prediction_tokens == report["accepted"]
    assert usage.completion_tokens_details.rejected_prediction_tokens == report["drafted"] - report["accepted"]


def test_request_ids(client: openai.OpenAI, server: Served):
    """The answer's id is in its headers; of it, beside the session's, the daemon's log has the beginning only."""
    answer = client.completions.with_raw_response.create(model="any", prompt="once", max_tokens=2)
    name = answer.parse().id
    assert answer.headers["x-request-id"] == name
    assert name[:-20] in [event.get("request") for event in server.daemon.events("session_opened")]
    assert name not in server.daemon.text()


def test_commands(server: Served):
    """`specmesh chat` with what is piped in, through the template; `specmesh generate --stop`."""
    where = ("--socket", server.daemon.socket, "--temperature", 0)
    done = command("chat", "--system", "Be brief.", *where, "--max-tokens", 20, stdin="Hi")
    assert (done.code, done.out) == (0, sim_text(RENDERED, 20) + "\n")
    whole = sim_text("once", 100)
    done = command("generate", "once", *where, "--max-tokens", 100, "--stop", whole[50:53], "--json")
    assert (done.json["text"], done.json["finish_reason"]) == (whole[: whole.index(whole[50:53])], "stop")


def test_more_than_there_are_sessions(mesh: Mesh):
    """Forty clients at either daemon wait for their turn without asking again, each for its own text; so do more than a
    verifier takes of one drafter at once."""
    servers = serve(mesh, "step_ms=1,n_ctx=9000")
    for role, count in (("verifier", 40), ("drafter", 40), ("drafter", 200)):

        def ask(number: int, server: Served = servers[role]) -> bool:
            return server.complete(prompt=f"Number {number}", max_tokens=30).texts == [sim_text(f"Number {number}", 30)]

        with ThreadPoolExecutor(count) as clients:
            assert all(clients.map(ask, range(count)))
