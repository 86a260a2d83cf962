"""What the API shows of a daemon that is not ready yet."""

from specmesh.daemons.runtime.backends import Loading


def test_loading_says_how_far_it_is():
    """A share of the model, or the bytes that came of it; each is passed on, and so is the answer."""
    heard: list[tuple[float, int]] = []

    def goes_on(share: float, fetched: int) -> bool:
        heard.append((share, fetched))
        return len(heard) < 3

    loading = Loading("drafter", goes_on)
    assert loading.progress(0.0, 400_000_000)
    assert "downloading its model (400 MB so far)" in str(loading.error())
    assert loading.stats()["loading"] == 0.0
    assert loading.progress(0.43)
    assert "loading its model (43%)" in str(loading.error())
    assert loading.stats()["loading"] == 0.43
    assert not loading.progress(1.0)
    assert heard == [(0.0, 400_000_000), (0.43, 0), (1.0, 0)]
