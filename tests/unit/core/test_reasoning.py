"""Thoughts told from answers, wherever a text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.reasoning import STYLES, ThoughtSplitter, detect, thinking

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
    ("seed", "<seed:think>a</seed:think>b", "a", "b"),
    ("harmony", HARMONY, "Hm, 2.So.", "I look.4 <b>"),
    ("harmony", "<|channel|>analysis<|message|>T<|end|><|start|>assistant" + CALL, "T", CALL),
    ("harmony", "no <|channels", "", "no <|channels"),
    ("", "<think>a</think>", "", "<think>a</think>"),
]


def split(named: str, text: str, cuts: list[int]) -> tuple[str, str]:
    splitter, thought, answer = ThoughtSplitter(named), "", ""
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for begin, end in pairwise(bounds):
        parts = splitter.feed(text[begin:end])
        thought, answer = thought + parts[0], answer + parts[1]
    parts = splitter.feed("", over=True)
    return thought + parts[0], answer + parts[1]


@given(st.sampled_from(CASES), st.lists(st.integers(0, 300), max_size=8))
def test_a_split_is_the_same_wherever_a_text_is_cut(case: tuple[str, str, str, str], cuts: list[int]):
    named, text, thought, answer = case
    assert split(named, text, cuts) == (thought, answer)


@pytest.mark.parametrize("case", CASES)
def test_letter_by_letter_and_at_once(case: tuple[str, str, str, str]):
    named, text, thought, answer = case
    assert split(named, text, list(range(len(text)))) == (thought, answer)
    assert ThoughtSplitter(named).feed(text, over=True) == (thought, answer)


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
        ("{{ '[THINK]' }}", "[INST]", "brackets"),
        ("'<|channel|>analysis<|message|>' + message.thinking + '<|end|>'", "<|start|>assistant", "harmony"),
        ("{{ messages[0].content }}", "<think>", ""),
    ],
)
def test_a_template_shows_its_marks(template: str, prompt: str, named: str):
    assert thinking(detect(template), prompt) == named
    assert named.removesuffix("!") in {*STYLES, ""}
