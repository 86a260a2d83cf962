"""Exit codes and sentences of our errors."""

import pytest

from specmesh import errors

CODES = {
    errors.SpecmeshError: 1,
    errors.ConfigError: 78,
    errors.BadVariable: 78,
    errors.InsecureKeys: 77,
    errors.EngineError: 1,
    errors.ChildFailed: 1,
    errors.RequestError: 2,
    errors.PromptTooLong: 2,
    errors.NoSuchModel: 2,
    errors.NoSuchText: 2,
    errors.DaemonUnreachable: 69,
    errors.WentAway: 69,
    errors.Refused: 77,
    errors.Busy: 75,
    errors.Starting: 75,
    errors.PullError: 1,
    errors.HubUnreachable: 69,
    errors.TransferInterrupted: 75,
    errors.LocalProtocolError: 1,
    errors.RemoteProtocolError: 1,
    errors.FrameError: 1,
}


def test_exit_codes():
    """Each class has the exit code that the command line promises, and all of them are listed here."""
    for cls, code in CODES.items():
        assert cls.exit_code == code
        assert issubclass(cls, errors.SpecmeshError)
    defined = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)}
    assert defined == set(CODES)


def test_prompt_too_long_names_both_counts():
    """The sentence has both counts and what to do, in the words that clients look for."""
    error = errors.PromptTooLong.of(5000, 4096)
    for word in ("This model's maximum context length is 4096 tokens", "5000 tokens", "shorten", "--ctx"):
        assert word in str(error)


@pytest.mark.parametrize("seen", [3, b"HT", "x" * 10])
def test_frame_error_names_what_was_seen(seen: object):
    """reason labels the counter, seen is the offending value."""
    error = errors.FrameError("magic", seen)
    assert (error.reason, error.seen) == ("magic", seen)
    assert "magic" in str(error)
    assert repr(seen) in str(error)
