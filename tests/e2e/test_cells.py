"""A verifier whose KV cache is too small for all that its clients ask for at once."""

from processes import Stream, body, generate

CLIENTS = 6
TOKENS = 350
PROMPTS = [f"{number}: once upon a time" for number in range(CLIENTS)]
POOL = "step_ms=8,n_ctx=400,cells=600,host_ids=300"


def test_all_texts_are_the_targets_own(mesh):
    """Sessions are set back, with a drafter, and at either daemon nobody notices."""
    verifier = mesh.verifier(POOL)
    drafter = mesh.drafter("draft_ms=3,n_ctx=400")
    mesh.attached(drafter)
    streams = []
    for number, prompt in enumerate(PROMPTS):
        streams.append(Stream((verifier, drafter)[number % 2], body(prompt, TOKENS)))
    for stream in streams:
        assert stream.read().checked().finish == "length"
    assert verifier.stats()["kv_cache"]["setbacks"] > 0


def test_what_it_has_is_shown(mesh):
    verifier = mesh.verifier(POOL)
    ready = verifier.event("ready")
    assert (ready["n_ctx"], ready["kv_cache_tokens"]) == (400, 600)
    assert verifier.stats()["kv_cache"]["cells"] == 600


def test_only_a_prompt_that_never_fits_is_refused(mesh):
    """Both numbers are named."""
    verifier = mesh.verifier(POOL)
    done = generate(verifier, "x" * 450, max_tokens=5)
    done.refused(2, "maximum context length is 400 tokens", "450 tokens")


def test_a_text_that_has_no_room_in_the_cells(mesh):
    options = ("--engine", "sim", "--model", "n_ctx=400,cells=300")
    mesh.cannot_start("verifier", *options).refused(78, "cells=300")


def test_sizes_that_contradict_each_other(mesh):
    """Nothing is loaded for that."""
    options = ("--model", "bundled", "--ctx", 4096, "--kv-cache", 2048)
    mesh.cannot_start("verifier", *options).refused(78, "--ctx 4096", "--kv-cache 2048")
