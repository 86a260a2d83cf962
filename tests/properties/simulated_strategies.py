"""Worlds, drafters and sampling as hypothesis draws them."""

from hypothesis import strategies as st
from simulated_drafters import Drafter
from simulated_link import Faults

from specmesh.core.sampling import Strategy
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.core.session_params import SessionParams

share = st.sampled_from([0.0, 0.05, 0.3])


def sampled(strategy):
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.3, 1.0]),
        top_k=st.sampled_from([0, 5]),
        top_p=st.sampled_from([1.0, 0.9]),
        seed=st.integers(0, 2**64 - 1),
        penalties=st.sampled_from([Penalties(), Penalties(1.5, 0.5, 0.5, 4), Penalties(frequency=1.0, window=-1)]),
        strategy=st.just(strategy),
    )


OF_DRAFTERS = {
    "accuracy": [0.0, 0.5, 0.8, 1.0],
    "hostile": [False, False, False, True],
    "silent": [False, False, False, True],
    "seconds": [0.001, 0.008, 0.05, 0.3],
    "life": [float("inf"), 0.1, 0.7],
    "n_ctx": [4096, 30],
    "n_batch": [1, 6, 64],
    "can_trim": [True, False],
}
drafters = st.builds(Drafter, **{name: st.sampled_from(values) for name, values in OF_DRAFTERS.items()})


def worlds_of(kind):
    return st.builds(
        kind,
        seed=st.integers(0, 2**32),
        faults=st.builds(Faults, drop=share, double=share, late=share, damage=share),
        round_trip=st.sampled_from([0.0, 0.0003, 0.02, 0.1, 0.5]),
        n_ctx=st.sampled_from([512, 40, 10]),
        n_batch=st.sampled_from([9, 24]),
        row=st.sampled_from([0.0, 0.02, 1.0]),
    )


def params_of(sampling):
    return st.builds(
        SessionParams,
        sampling=sampling,
        max_tokens=st.sampled_from([1, 2, 30, 80]),
        draft_n=st.sampled_from([None, None, 0, 1, 4, 30]),
    )


session_params = params_of(st.just(SamplingParams()) | sampled(Strategy.DETERMINISTIC))
probabilistic = params_of(sampled(Strategy.PROBABILISTIC))
