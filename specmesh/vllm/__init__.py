"""A vLLM server as the verifier: its official door for drafts from outside (`custom_class`).

    vllm serve MODEL --speculative-config '{"method": "custom_class",
        "model": "specmesh.vllm.Proposer", "num_speculative_tokens": 8}'

vLLM makes a `Proposer` in its worker and asks it for drafts after each step. Drafter daemons attach
to it as they do to `specmesh verifier`.

| module | holds |
|---|---|
| `proposer` | the class that vLLM makes: checks at load, and an answer to each call |
| `compatibility` | what this code expects of vLLM |
| `settings` | settings, of the environment and the file |
| `row_texts` | which row of a batch is which text |
| `drafting` | `VerifierCore`, driven by vLLM's steps |
| `draft_service` | the bound port, and the thread that `loop` and `local_socket` share |
| `allowance`, `faults` | what drafting may cost, and how many errors it survives |
| `loop` | drafters' frames, and statistics |
| `local_socket` | the API at a Unix socket |
| `vocabulary` | the bytes of a Hugging Face tokenizer's ids |

Nothing else of specmesh imports it, and it does not import vLLM: all that it needs is given to it.
"""

from specmesh.vllm.proposer import Proposer

__all__ = ["Proposer"]
