"""Which vLLM is known, by its version, its configuration and its calls."""

from types import SimpleNamespace

import numpy as np
import pytest
from harness.fake_vllm import config_of
from harness.tables import cases

from specmesh.vllm.compatibility import fault_of, fault_of_call
from specmesh.vllm.served_model import place_of, served_model

LENGTHS = np.zeros(2, np.int32)
IDS = np.zeros((2, 9), np.int32)


@cases("version", '"0.22.1" "0.32.0" "0.33.0" "0.33.1.dev3+g12" null')
def test_known_versions(version):
    assert fault_of(version, config_of()) == ""


@cases("version", '"0.20.2" "0.22.0" "0.34.0" "0.34.0rc1" "1.0" "nightly"')
def test_other_versions(version):
    assert f"vLLM {version} is not known" in fault_of(version, config_of())


@pytest.mark.parametrize(
    ("section", "fields", "fault"),
    [
        ("speculative_config", {"method": "ngram"}, "'ngram', not 'custom_class'"),
        ("speculative_config", {"method": "custom_class"}, "num_speculative_tokens"),
        ("scheduler_config", {"async_scheduling": True}, "--async-scheduling"),
    ],
)
def test_other_configurations(section, fields, fault):
    config = config_of()
    setattr(config, section, SimpleNamespace(**fields))
    assert fault in fault_of("0.33.0", config)


@pytest.mark.parametrize(
    ("parallel", "fault"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline stages"),
        ({"distributed_executor_backend": "external_launcher"}, "external launcher"),
        ({"pipeline_parallel_size": 1, "distributed_executor_backend": "mp"}, ""),
    ],
)
def test_models_that_are_split_up(parallel, fault):
    found = fault_of("0.33.0", config_of(**parallel))
    assert fault in found
    assert bool(found) == bool(fault)


def test_the_runner_without_such_a_door():
    config = config_of()
    config.use_v2_model_runner = True
    assert "V2 model runner" in fault_of("0.33.0", config)


def test_known_calls():
    assert fault_of_call([[1], []], LENGTHS, IDS) == ""


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ({"sampled": 8}, "sampled_token_ids is a int"),
        ({"lengths": None}, "num_tokens_no_spec"),
        ({"lengths": IDS}, "num_tokens_no_spec"),
        ({"ids": LENGTHS}, "token_ids_cpu"),
        ({"ids": IDS.astype(np.int64)}, "token_ids_cpu"),
    ],
)
def test_other_calls(call, fault):
    known = {"sampled": [[1]], "lengths": LENGTHS, "ids": IDS}
    assert fault in fault_of_call(**known | call)


@cases(
    "parallel, answers, engine",
    """[{}, true, 0]
    [{"tensor_parallel_size": 2, "rank": 1}, false, 0]
    [{"tensor_parallel_size": 2, "rank": 2}, true, 0]
    [{"data_parallel_rank": 3}, true, 3]
    [{"data_parallel_rank": 0, "data_parallel_index": 2}, true, 2]
    [{"data_parallel_index": null}, true, 0]""",
)
def test_one_worker_of_each_engine_answers(parallel, answers, engine):
    place = place_of(config_of(**parallel))
    assert (place.answers, place.engine) == (answers, engine)


def test_the_served_model():
    config = config_of(drafts=5, n_ctx=99, n_vocab=77)
    config.model_config.served_model_name = ["name", "alias"]
    config.device_config.device_type = "cuda"
    model = served_model(config)
    assert (model.name, model.n_ctx, model.n_vocab, model.drafts) == ("name", 99, 77, 5)
    assert (model.backend, model.cpu_threads) == ("vLLM, cuda", 0)
