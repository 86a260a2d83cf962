"""What a client does after a loss."""

import pytest

from specmesh import errors
from specmesh.client.resume import Resumption

TIMEOUT = 30.0
LOST = errors.WentAway("lost")
NAME = "cmpl-1"
BEGUN = {"id": NAME, "specmesh": {"request": {"seed": 3}, "prompt_token_ids": [1]}}
TOKEN = {"id": NAME, "specmesh": {"token_ids": [7]}}


@pytest.fixture
def text():
    return Resumption({"prompt": "x"}, TIMEOUT)


def test_a_text_goes_on_where_it_was(text):
    text.note(BEGUN)
    text.note(TOKEN)
    assert text.after(LOST, 0.0).seconds > 0
    resumed = {"id": NAME, "model": None, "prompt_token_ids": [1], "token_ids": [7]}
    assert text.body["resume"] == resumed
    assert text.body["seed"] == 3


def test_a_text_names_the_file_of_its_model(text):
    """Another file would go on with another text."""
    text.note({"id": NAME, "specmesh": BEGUN["specmesh"] | {"model_hash": "f00d"}})
    assert text.body["resume"]["model_hash"] == "f00d"


def test_several_texts_are_not_resumed():
    body = Resumption({"prompt": "x", "n": 2}, TIMEOUT).body
    assert body["resumable"] is False
    assert body["reconnect_timeout"] == TIMEOUT


def test_pauses_grow_up_to_a_second_and_end_with_the_time(text):
    pauses = [text.after(LOST, 0.0).seconds for _ in range(8)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert text.after(LOST, TIMEOUT - 0.25).seconds == 0.25
    with pytest.raises(errors.WentAway):
        text.after(LOST, TIMEOUT)


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"text": "A"}]},
        {"id": NAME, "choices": [{"text": "A"}]},
        {"id": NAME, "specmesh": {"request": {}}},
    ],
)
def test_a_text_that_cannot_be_resumed_is_not_asked_for_again(text, chunk):
    """Its beginning would come twice."""
    text.note(chunk)
    with pytest.raises(errors.WentAway):
        text.after(LOST, 0.0)


def test_the_clients_time_out_ends_the_waiting(text):
    with pytest.raises(errors.TimedOut):
        text.after(errors.TimedOut("silent"), 0.0)
    text.note(BEGUN)
    with pytest.raises(errors.TimedOut, match=f"--resume {NAME}"):
        text.after(errors.TimedOut("silent"), 0.0)


def test_a_daemon_that_always_ends_before_the_first_token_is_left(text):
    for now in (0.0, TIMEOUT - 1):
        text.note(BEGUN)
        assert text.after(LOST, now).seconds > 0
    text.note(BEGUN)
    with pytest.raises(errors.WentAway):
        text.after(LOST, TIMEOUT + 1)


def test_each_token_makes_the_waiting_begin_anew(text):
    text.note(BEGUN)
    for now in (0.0, TIMEOUT + 1, 2 * TIMEOUT + 2):
        text.note(TOKEN)
        assert text.after(LOST, now).seconds > 0
