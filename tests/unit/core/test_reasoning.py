"""Thoughts read from answers, in any pieces of a text, and the marks of a template."""

import pytest
from called import cut_up
from harness.tables import cases
from hypothesis import example, given
from hypothesis import strategies as st

from specmesh.core.text import reasoning
from specmesh.core.text.reasoning import STYLES, ThoughtSplitter, thinking

HARMONY = (
    "<|channel|>analysis<|message|>Hm, 2.<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    "<|channel|>analysis<|message|>So. <|end|><|start|>assistant"
    "<|channel|>final<|message|> 4 <b>"
)
CALL = "<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}"
CALLING = f"<|channel|>analysis<|message|>T<|end|><|start|>assistant{CALL}"


@cases(
    "named, text, thought, answer",
    r"""
    ["think", "<think>\na <b>\n\nc\n</think>\n\nThe <think> answer \n",
     "a <b>\n\nc", "The <think> answer \n"]
    ["think", "\n <think></think>x", "", "x"]
    ["think", " plain <think>x</think>", "", " plain <think>x</think>"]
    ["think", "<thin", "", "<thin"]
    ["think", " \n", "", " \n"]
    ["think", "<think> cut </thi", "cut </thi", ""]
    ["think!", "\nIt is \n </think>\n4", "It is", "4"]
    ["think!", "no end \n", "no end", ""]
    ["brackets", "[THINK]a[/THINK]b", "a", "b"]
    ["harmony", $HARMONY, "Hm, 2.So.", "I look.4 <b>"]
    ["harmony", $CALLING, "T", $CALL]
    ["harmony", "no <|channels", "", "no <|channels"]
    ["", "<think>a</think>", "", "<think>a</think>"]
    """,
    HARMONY=HARMONY,
    CALLING=CALLING,
    CALL=CALL,
)
@given(st.lists(st.integers(0, 300), max_size=8))
@example(list(range(300)))
@example([])
def test_a_text_is_split_the_same_in_any_pieces(named, text, thought, answer, cuts):
    splitter = ThoughtSplitter(named)
    parts = [splitter.feed(piece, over=not cuts) for piece in cut_up(text, cuts)]
    assert joined(parts, splitter) == (thought, answer)


def joined(parts, splitter):
    """Return the thought and the answer of all parts and of the end."""
    thoughts, answers = zip(*parts, splitter.feed("", over=True), strict=True)
    return "".join(thoughts), "".join(answers)


def test_a_text_that_cannot_be_a_mark_is_shown_at_once():
    splitter = ThoughtSplitter("think!")
    assert splitter.feed("It is <") == ("It is", "")
    assert splitter.feed("b> so</think>\nAn") == (" <b> so", "An")
    assert splitter.feed("swer <") == ("", "swer <")


@cases(
    "template, prompt, named",
    r"""
    ["{{ content.split('</think>')[-1] }}", "<|assistant|>", "think"]
    ["{{ '<think>\\n' }}", "<|assistant|><think>\n", "think!"]
    [
      "'<|channel|>analysis<|message|>' + message.thinking + '<|end|>'", "<|start|>assistant",
      "harmony"
    ]
    ["{{ messages[0].content }}", "<think>", ""]
    """,
)
def test_a_template_shows_the_marks_of_its_thoughts(template, prompt, named):
    assert thinking(reasoning.detect(template), prompt) == named


STYLE = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


@STYLE
@pytest.mark.parametrize("cuts", [[], range(80)])
def test_a_thought_and_an_answer_in_every_style(style, cuts):
    """Some styles have marks around the answer too."""
    before, after = (*style.dropped, "", "")[:2]
    text = f"{style.begin}Hm <b>.{style.end}{before}So.{after}"
    splitter = ThoughtSplitter(style.name)
    parts = [splitter.feed(piece) for piece in cut_up(text, cuts)]
    assert joined(parts, splitter) == ("Hm <b>.", "So.")


@STYLE
def test_the_marks_around_a_thought_that_a_template_writes(style):
    text = f"x {style.begin}\n a thought \n{style.end} y"
    assert reasoning.detect_written(text, "a thought") is style


@STYLE
def test_a_prompt_that_begins_a_thought(style):
    assert thinking(style, f"assistant: {style.begin}\n") == f"{style.name}!"
