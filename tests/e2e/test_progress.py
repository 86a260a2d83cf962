"""Progress and sources as official clients see them: a slow prompt, at a verifier and a drafter."""

import anthropic
import openai
import pytest
from meshes import running
from served import CONTEXT, serve

WORDS = "All of it. " * 150
CHAT = [{"role": "user", "content": WORDS}]
READING = {"return_progress": True, "cache_prompt": False}
ASKED = READING | {"sources": True}


@pytest.fixture(scope="module")
def slow():
    """A pair whose verifier reads a thousand ids in half a second."""
    with running() as mesh:
        yield serve(mesh, f"row_ms=0.5,n_ctx={CONTEXT}")


@pytest.fixture
def server(slow, role):
    return slow[role]


@pytest.fixture
def client(server):
    base = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=base, api_key=server.key or "none", max_retries=0) as made:
        yield made


def progress_of(chunks):
    """Return the progress of chunks, which is before the text only."""
    found = []
    for chunk in chunks:
        [choice] = chunk.choices
        progress = chunk.model_extra.get("prompt_progress")
        if progress is not None:
            assert choice.finish_reason is None
            found.append(progress)
    return found


def is_of_a_prompt(progress):
    read = [one["processed"] for one in progress]
    assert read == sorted(read)
    assert {one["cache"] for one in progress} == {0}
    assert all(0 < one["processed"] < one["total"] for one in progress)
    assert {one["total"] > len(WORDS) - 10 for one in progress} == {True}
    return bool(progress)


def test_completions_of_the_openai_client(client):
    asked = {"model": "any", "prompt": WORDS, "max_tokens": 20, "temperature": 0}
    whole = client.completions.create(**asked, extra_body=ASKED)
    chunks = list(client.completions.create(**asked, stream=True, extra_body=ASKED))
    assert is_of_a_prompt(progress_of(chunks))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_chats_of_the_openai_client(client):
    """Its helper, which builds the whole answer from the chunks, takes them too."""
    asked = {"model": "any", "messages": CHAT, "temperature": 0}
    whole = client.chat.completions.create(**asked, max_tokens=20, extra_body=ASKED)
    text = whole.choices[0].message.content
    stops = ASKED | {"stop": text[-3:]}
    with client.chat.completions.stream(**asked, max_tokens=60, extra_body=stops) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        built = stream.get_final_completion()
    assert is_of_a_prompt(progress_of(chunks))
    assert built.choices[0].message.content == text[: text.index(text[-3:])]
    for chunk in chunks:
        extra = chunk.model_extra["specmesh"]
        if "token_ids" in extra:
            assert sum(count for _, count in extra["source"]) == len(extra["token_ids"])


def test_responses_of_the_openai_client(client):
    asked = {"model": "any", "input": WORDS, "temperature": 0}
    whole = client.responses.create(**asked, max_output_tokens=20, extra_body=READING)
    text = whole.output_text
    stops = READING | {"stop": text[-3:]}
    with client.responses.stream(**asked, max_output_tokens=60, extra_body=stops) as stream:
        events = list(stream)
        built = stream.get_final_response()
    progress = [event.model_extra.get("prompt_progress") for event in events]
    assert is_of_a_prompt(list(filter(None, progress)))
    assert built.output_text == text[: text.index(text[-3:])]


def test_messages_of_the_anthropic_client(server):
    base = f"http://127.0.0.1:{server.port}"
    key = server.key or "none"
    asked = {"model": "any", "messages": CHAT, "max_tokens": 20}
    extra = READING | {"temperature": 0}
    with anthropic.Anthropic(base_url=base, api_key=key, max_retries=0) as client:
        whole = client.messages.create(**asked, extra_body=extra)
        with client.messages.stream(**asked, extra_body=extra) as stream:
            built = stream.get_final_message()
    assert built.content[0].text == whole.content[0].text
