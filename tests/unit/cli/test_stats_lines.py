"""A snapshot as lines for people."""

from specmesh.cli.stats import rows


def test_loading():
    assert rows({"role": "verifier", "loading": 0.43}) == [("role", "verifier"), ("loading", "43%")]


def test_a_daemon_of_another_version():
    """What it does not tell is a dash; what could steer a terminal is replaced."""
    told = dict(rows({"role": "verifier", "model": {"name": "big\x1b[2J"}, "busy": {"drafters": {"a\x1b": 0.5}}}))
    assert told["model"] == "big?[2J on -"
    assert told["sessions"] == "- live of -, - opened"
    assert told["tokens/s"] == "-, one-token step - ms"
    assert told["busy"] == "a? 50%"
    assert told["drafter"] == "none attached"
    assert dict(rows({"role": "drafter"}))["verifier"] == "not connected"
