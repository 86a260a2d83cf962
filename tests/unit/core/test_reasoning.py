"""Thoughts told from answers, wherever a text is cut."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specmesh.core.reasoning import ThoughtSplitter, detect, thinking

HARMONY = (
    "<|channel|>analysis<|message|>Hm, 2.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>analysis<|message|>So. <|end|><|start|>assistant<|channel|>final<|message|> 4 <b>"
)
CALL = "<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}"
CASES = [
    ("think", "<think>\na <b>\n\nc\n</think>\n\nThe <think> answer \n", "a <b>\n\nc", "The <think> answer \n"),
    ("think", "\n <think></think>x", "", "x"),
    ("think", " plain <think>x</think>", "", " plain <think>x</think>"),
    ("think", "<thin", "", "<thin"),
    ("think", " \n", "", " \n"),
    ("think", "<think> cut </thi", "cut </thi", ""),
    ("think!", "\nIt is \n </think>\n4", "It is", "4"),
    ("think!", "no end \n", "no end", ""),
    ("brackets", "[THINK]a[/THINK]b", "a", "b"),
    ("harmony", HARMONY, "Hm, 2.So.", "I look.4 <b>"),
    ("harmony", "<|channel|>analysis<|message|>T<|end|><|start|>assistant" + CALL, "T", CALL),
    ("harmony", "no <|channels", "", "no <|channels"),
    ("", "<think>a</think>", "", "<think>a</think>"),
]


@pytest.mark.parametrize(("named", "text", "thought", "answer"), CASES)
@given(st.lists(st.integers(0, 300), max_size=8))
@example(list(range(300)))
@example([])
def test_a_split_is_the_same_wherever_a_text_is_cut(named: str, text: str, thought: str, answer: str, cuts: list[int]):
    splitter, told = ThoughtSplitter(named), ["", ""]
    for begin, end in pairwise([0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]):
        told = [old + new for old, new in zip(told, splitter.feed(text[begin:end], over=not cuts), strict=True)]
    assert [old + new for old, new in zip(told, splitter.feed("", over=True), strict=True)] == [thought, answer]


def test_what_cannot_be_a_mark_is_told_at_once():
    splitter = ThoughtSplitter("think!")
    assert splitter.feed("It is <") == ("It is", "")
    assert splitter.feed("b> so</think>\nAn") == (" <b> so", "An")
    assert splitter.feed("swer <") == ("", "swer <")


@pytest.mark.parametrize(
    ("template", "prompt", "named"),
    [
        ("{{ content.split('</think>')[-1] }}", "<|assistant|>", "think"),
        ("{{ '<think>\\n' }}", "<|assistant|><think>\n", "think!"),
        ("'<|channel|>analysis<|message|>' + message.thinking + '<|end|>'", "<|start|>assistant", "harmony"),
        ("{{ messages[0].content }}", "<think>", ""),
    ],
)
def test_a_template_shows_its_marks(template: str, prompt: str, named: str):
    assert thinking(detect(template), prompt) == named
