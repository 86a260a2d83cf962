"""Whether drafting has paid, by the clock."""

from specmesh.core.draft_length.drafter_backoff import Trial


def tried(*tokens, seconds):
    """Rounds of so many tokens, one every so many seconds."""
    trial = Trial()
    for number, count in enumerate((1, *tokens)):
        trial.add(count, number * seconds)
    return trial


def test_slower_than_the_target_alone():
    """Two tokens in the time of three are; three in the time of two are not."""
    assert tried(*[2] * 30, seconds=3.0).slower(1.0)
    assert not tried(*[3] * 30, seconds=2.0).slower(1.0)


def test_luck_is_no_proof():
    """A little slower, with tokens that vary much, may be chance."""
    assert not tried(*[1, 9] * 4, seconds=5.2).slower(1.0)
    assert tried(*[5] * 8, seconds=5.2).slower(1.0)


def test_rounds_that_do_not_count():
    """What passes until the next that does is nobody's time."""
    trial = tried(2, 2, seconds=1.0)
    trial.since = None
    trial.add(2, 100.0)
    trial.add(2, 101.0)
    assert (trial.rounds, trial.seconds) == (3, 3.0)
