"""A chat's text as deltas: joined they are its message, however the text comes."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.api.deltas import Deltas, deltas_of
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams

TOOLS = {"tools": [{"name": "f", "parameters": {}}], "choice": "auto", "parallel": True, "format": "hermes"}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
TEXT = f"<think>So?\n</think>\n\nWell: {CALL}\n{CALL}"


def made(*, splits: bool = True) -> Deltas:
    grammar = Grammar(GrammarKind.TOOLS, json.dumps(TOOLS | {"thinking": "think"}))
    deltas = deltas_of(SessionParams(SamplingParams(), 9, grammar=grammar, thinking="think"), splits=splits)
    assert deltas is not None
    return deltas


def joined(parts: list[dict[str, object]]) -> tuple[str, str, list[list[str]]]:
    """Thought, content and calls of all deltas."""
    thought = "".join(str(one.get("reasoning_content", "")) for one in parts)
    calls = list[list[str]]()
    for call in (call for one in parts for call in one.get("tool_calls", ())):
        if "id" in call:
            assert (call["index"], call["type"], len(call["id"])) == (len(calls), "function", 9)
            calls.append([call["function"]["name"], ""])
        calls[call["index"]][1] += call["function"]["arguments"]
    return thought, "".join(str(one.get("content", "")) for one in parts), calls


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_whatever_the_parts(cuts: list[int]):
    deltas, places = made(), [0, *sorted(cuts), len(TEXT)]
    parts = [TEXT[a:b] for a, b in pairwise(places)]
    told = [delta for n, part in enumerate(parts) for delta in deltas.feed(part, over=n == len(parts) - 1)]
    calls = [["f", '{"a": "</tool_call>"}']] * 2
    assert joined(told) == ("So?", "Well: ", calls)
    message = deltas.message
    assert (message["reasoning_content"], message["content"]) == ("So?", "Well: ")
    assert [list(call["function"].values()) for call in message["tool_calls"]] == calls


@pytest.mark.parametrize("known", ["<think>So", "<think>So?\n</think>\n\nWe"])
def test_a_text_gone_on_with(known: str):
    """What the client has is not said again, and says what the rest is."""
    deltas = made()
    deltas.skip(known)
    thought, content, calls = joined(deltas.feed(TEXT.removeprefix(known), over=True))
    assert ("So" + thought, "We" * ("We" in known) + content, len(calls)) in (("So?", "Well: ", 2), ("So", "Well: ", 2))


def test_thoughts_may_stay():
    """With their marks, and no call begins in one."""
    text = f"<think>So {CALL}</think>\n\nWell"
    assert joined(made(splits=False).feed(text, over=True)) == ("", f"<think>So {CALL}</think>Well", [])


def test_no_delta_is_empty():
    """Where a model does not think there are no marks to put back."""
    grammar = Grammar(GrammarKind.TOOLS, json.dumps(TOOLS | {"thinking": ""}))
    deltas = deltas_of(SessionParams(SamplingParams(), 9, grammar=grammar), splits=False)
    assert [delta for part in ("Well", ": ") for delta in deltas.feed(part, over=False)] == [
        {"content": "Well"}, {"content": ": "},
    ]  # fmt: skip


def test_half_a_call_is_none_that_was_made():
    whole, half = made(), made()
    whole.feed(TEXT, over=True)
    half.feed(TEXT[:-20], over=True)
    assert (whole.called, half.called) == (True, False)
