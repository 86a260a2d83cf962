"""Real vLLM servers for bench/vllm.py and bench/vllm_soak.py, on this machine's processors."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

from edits import edits
from live import Process, free_port, running
from prose import prompts

ROOT = Path(__file__).parents[1]
STARTING_S = 1800.0
"""Seconds for all of them: 30 to 60 on a machine that does nothing else."""
ANSWERING_S = 600.0
MODEL = "target"
OURS = "specmesh.vllm.Proposer"
EMPTY = "bench.empty_proposer.EmptyProposer"
"""Classes for vLLM's `custom_class`."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}
"""Variables of each server: one GiB for its memory of texts, no network."""

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Answer:
    """A text: its ids, and why it ended; "" if its client left."""

    ids: tuple[int, ...]
    finish: str


@dataclass(frozen=True, slots=True)
class Installed:
    """The Python of an environment with vLLM, a model's folder, and the folder of logs."""

    python: Path
    model: Path
    logs: Path


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running server."""

    port: int
    log: Path

    def complete(
        self, prompt: str, tokens: int, leave_after: int = 0, *, penalty: float = 1.0
    ) -> Answer:
        """Return a greedy text.

        leave_after: ids after which its client leaves; 0: never. penalty: of ids that repeat.
        """
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "repetition_penalty": penalty,
            "return_token_ids": True,
            "stream": True,
        }
        ids: list[int] = []
        finish = ""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=ANSWERING_S)) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise SystemExit(f"vLLM answers {response.status}: {response.read(500)!r}")
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                [choice] = json.loads(line.removeprefix(b"data: "))["choices"]
                ids += choice["token_ids"]
                finish = choice["finish_reason"] or ""
                if leave_after and len(ids) >= leave_after:
                    break
        return Answer(tuple(ids), finish)

    def count(self, name: str) -> int:
        """Return a counter of vLLM's, summed over its labels."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=ANSWERING_S)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        found = re.findall(rf"^vllm:{name}(?:_total)?(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, found)))

    def drafts(self) -> tuple[int, int]:
        """Return how many drafts were verified so far, and how many of them accepted."""
        drafted = self.count("spec_decode_num_draft_tokens")
        return drafted, self.count("spec_decode_num_accepted_tokens")

    def drafts_since(self, before: tuple[int, int]) -> tuple[int, int]:
        """Return how many drafts were verified and accepted since `drafts` returned these."""
        drafted, accepted = self.drafts()
        drafted -= before[0]
        accepted -= before[1]
        return drafted, accepted

    def answers(self) -> bool:
        """Return True if it is up."""
        with (
            closing(HTTPConnection("127.0.0.1", self.port, timeout=5.0)) as connection,
            suppress(OSError),
        ):
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a server is started.

    name: of its log. speculative: its --speculative-config. options: others.
    variables: of its environment.
    """

    name: str
    speculative: Json | None = None
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def command(self, installed: Installed, port: int) -> list[str]:
        """Return the command that starts it."""
        words = [str(installed.python), "-m", "vllm.entrypoints.openai.api_server"]
        words += ["--model", str(installed.model), "--served-model-name", MODEL]
        words += ["--port", str(port), "--dtype", "float32", "--enforce-eager", *self.options]
        if self.speculative is not None:
            words += ["--speculative-config", json.dumps(self.speculative)]
        environment = dict(ENVIRONMENT)
        environment["PYTHONPATH"] = str(ROOT)
        environment |= self.variables
        before = ["env"]
        for name, value in environment.items():
            before.append(f"{name}={value}")
        return before + words


@contextmanager
def serving(installed: Installed, *starts: Start) -> Iterator[list[VllmServer]]:
    """Run servers, which start side by side, and wait until all of them answer.

    Raise SystemExit if one ends before.
    """
    servers: list[VllmServer] = []
    with ExitStack() as stack:
        processes: list[Process] = []
        for one in starts:
            server = VllmServer(free_port(), installed.logs / f"{one.name}.log")
            words = one.command(installed, server.port)
            processes.append(stack.enter_context(running(words, log=server.log)))
            servers.append(server)
        deadline = time.monotonic() + STARTING_S
        for process, server in zip(processes, servers, strict=True):
            while not server.answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    end = server.log.read_text(errors="replace")[-2000:]
                    raise SystemExit(f"vLLM ended, or does not answer:\n{end}")
                time.sleep(0.5)
        yield servers


def custom(path: str, drafts: int) -> Json:
    """Return the --speculative-config of a class."""
    return {"method": "custom_class", "model": path, "num_speculative_tokens": drafts}


def ours(folder: Path, keys: Path | None = None) -> tuple[str, dict[str, str]]:
    """Return an address for drafters, and the variables that have our class listen there."""
    address = f"tcp://127.0.0.1:{free_port()}"
    variables = {
        "SPECMESH_VLLM_BIND": address,
        "SPECMESH_VLLM_SOCKET": str(folder / "vllm.sock"),
        "SPECMESH_VLLM_LOG_LEVEL": "info",
    }
    if keys is not None:
        variables["SPECMESH_VLLM_KEYS"] = str(keys)
    return address, variables


def texts() -> list[str]:
    """Return 40 prompts: of prose and of edits, each whole and cut short."""
    whole = list(prompts().values())
    whole += repeated_texts()
    cut: list[str] = []
    for text in whole:
        cut.append(text[: len(text) * 2 // 3])
    return whole + cut


def repeated_texts() -> list[str]:
    """Return the prompts of edits: what follows repeats most of them."""
    return [each.prompt for each in edits()]
