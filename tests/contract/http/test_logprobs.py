"""Log-probabilities in answers: whose they are, and in whose form."""

from asgi_calls import LETTERS

from specmesh.api.choices import ChoiceStream
from specmesh.api.shapes import Shape
from specmesh.core.requests import Finished, Request, Started, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary

EURO = tuple("€".encode())
PARAMS = SessionParams(SamplingParams(), 9, logprobs=1)


def likely(chosen: float, *top: tuple[int, float]) -> Logprob:
    return Logprob(chosen, tuple(token for token, _ in top), tuple(value for _, value in top))


def telling(params: SessionParams = PARAMS, *, chat: bool = False, said: tuple[int, ...] = ()) -> ChoiceStream:
    request = Request("x", None, params, generated=said, known=len(said))
    return ChoiceStream(LETTERS, request, chat=chat, resumable=True)


def test_a_completion_has_four_lists():
    """Tokens, theirs, the likeliest with the one that was said, and where each begins; specmesh's with ids."""
    told = telling()
    part = told.part(Tokens((65, 66), 1, None, (likely(-0.5, (65, -0.5)), likely(-3.0, (90, -0.1)))))
    chunk = Shape(False, "id", 0, "m").chunk(part.text, None, part.extra, part.tokens)
    assert chunk["choices"][0]["logprobs"] == {  # type: ignore[index]
        "tokens": ["A", "B"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{"A": -0.5}, {"Z": -0.1, "B": -3.0}],
        "text_offset": [0, 1],
    }
    [first, _] = chunk["specmesh"]["logprobs"]  # type: ignore[index]
    entry = {"id": 65, "token": "A", "logprob": -0.5, "bytes": [65]}
    assert first == entry | {"top_logprobs": [entry]}


def test_a_chat_has_one_object_each():
    """With the bytes of the token; content alone, as nothing is refused."""
    told = telling(chat=True)
    part = told.part(Tokens((65,), 0, None, (likely(-3.0, (90, -0.1)),)))
    whole = Shape(True, "id", 0, "m").whole(part.text, "stop", part.extra, part.tokens)
    assert whole["choices"][0]["logprobs"] == {  # type: ignore[index]
        "content": [
            {
                "id": 65,
                "token": "A",
                "logprob": -3.0,
                "bytes": [65],
                "top_logprobs": [{"id": 90, "token": "Z", "logprob": -0.1, "bytes": [90]}],
            }
        ],
        "refusal": None,
    }
    assert "logprobs" not in whole["specmesh"]  # type: ignore[operator]


def test_parts_of_a_character_are_told_as_bytes():
    """Each token has its own; the text comes with the last of them."""
    told = telling()
    part = told.part(Tokens((65, *EURO, 66), 0, None, tuple(likely(-1.0) for _ in range(5))))
    chunk = Shape(False, "id", 0, "m").chunk(part.text, None, part.extra, part.tokens)
    logprobs = chunk["choices"][0]["logprobs"]  # type: ignore[index]
    assert (part.text, logprobs["text_offset"]) == ("A€B", [0, 1, 1, 1, 2])
    assert logprobs["tokens"] == ["A", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "B"]
    assert chunk["specmesh"]["logprobs"][1]["bytes"] == [0xE2]  # type: ignore[index]


def test_who_asks_by_name_has_what_the_text_has():
    """Ids from before it was last gone on with have null."""
    told = ChoiceStream(
        LETTERS, Request(None, None, SessionParams(SamplingParams(), 9), named_only=True), resumable=False
    )
    told.part(Started(1, 1, (9,), PARAMS))
    assert told.logprobs
    part = told.part(Tokens((65, 66), 0, None, (None, likely(-1.0))))
    chunk = Shape(False, "id", 0, "m").chunk(part.text, None, part.extra, part.tokens)
    logprobs = chunk["choices"][0]["logprobs"]  # type: ignore[index]
    assert (logprobs["token_logprobs"], logprobs["top_logprobs"]) == ([None, -1.0], [None, {"B": -1.0}])


def test_ids_text_and_logprobs_end_together():
    """At a stop string that begins in an id and ends in another: what is told is as little as has the text."""
    pieces = (b"ab", b"c#", b"#", b"#d")
    request = Request("x", None, SessionParams(SamplingParams(), 9, stop=("##",), logprobs=0))
    told = ChoiceStream(Vocabulary(pieces, frozenset()), request, resumable=False)
    parts = [told.part(Tokens((token,), 0, None, (likely(-float(token)),))) for token in (0, 2, 1, 3)]
    parts.append(told.part(Finished("stop", (), {})))
    assert [part.text for part in parts] == ["ab", "", "#c", "", ""]
    said = [(one.id, one.begin) for part in parts for one in part.tokens]
    assert (said, told.generated) == ([(0, 0), (2, 2), (1, 3)], 3)
