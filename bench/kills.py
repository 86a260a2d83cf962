"""kill -9 of either daemon at random moments: the same texts, and nothing left behind.

    python bench/kills.py [--kills N] [--tokens N] [--seed S] [--models sim|bundled] [--json]

Real daemons. For each kill one text is generated, at the drafter's socket or the verifier's, greedy or sampled, and in
the middle of it the verifier, the drafter or both are killed and started again. Each text is compared with that of the
verifier alone. At the end, and after the grace, neither daemon may hold a session. With the bundled pair a text may
part at a near tie, because what was decoded in steps is prefilled in batches: the first two choices there, and close.
The exit status is 1 for a text that differs otherwise, a generation that failed, or a session that is left.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from specmesh import logs
from specmesh.client import Client
from specmesh.core.fields import Json, number_at
from specmesh.engines.llama import LlamaVerifier
from specmesh.paths import bundled

sys.path.insert(0, str(Path(__file__).parent))
from held_out import prompts
from live import until
from referee import near_tie, referee

ADDRESS = "tcp://127.0.0.1:7398"
GRACE = 3.0
RUN = [sys.executable, "-m", "specmesh"]
SIM = {"verifier": ("sim", "step_ms=8"), "drafter": ("sim", "draft_ms=0.5,alpha=0.9")}
BUNDLED = {
    "verifier": ("llama", bundled("target.gguf")),
    "drafter": ("llama", bundled("drafter.gguf")),
}
TEMPERATURE = 0.8


@dataclass(slots=True)
class Pair:
    """Both daemons, each started again whenever it is killed."""

    folder: Path
    models: dict[str, tuple[str, str]]
    processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def start(self, role: str) -> None:
        """Start a daemon; its log goes on where that of the one before ended."""
        engine, model = self.models[role]
        where = (
            ["--bind", ADDRESS, "--grace", str(GRACE)]
            if role == "verifier"
            else ["--connect", ADDRESS]
        )
        shared = [
            "--threads",
            "1",
            "--ctx",
            "1024",
            "--max-sessions",
            "4",
            "--socket",
            str(self.socket(role)),
        ]
        with (self.folder / f"{role}.log").open("ab") as file:
            words = [*RUN, role, "--engine", engine, "--model", model, *where, *shared]
            self.processes[role] = subprocess.Popen(words, stdout=file, stderr=file)

    def kill(self, role: str) -> None:
        """kill -9, and start it again at once."""
        self.processes[role].send_signal(signal.SIGKILL)
        self.processes[role].wait()
        self.start(role)

    def socket(self, role: str) -> Path:
        """Where its API listens."""
        return self.folder / f"{role}.sock"

    def ready(self) -> None:
        """Wait until both serve, the drafter attached."""
        until(lambda: bool(Client(self.socket("verifier")).get("/stats").get("peers")))
        until(lambda: Client(self.socket("drafter")).get("/health").get("status") == "ok")

    def left(self) -> int:
        """Sessions that either holds, for somebody or nobody."""
        count = 0
        for role, names in (("verifier", ("live", "kept")), ("drafter", ("live", "interrupted"))):
            told = Client(self.socket(role)).get("/stats")
            count += int(sum(number_at(told, f"sessions.{name}") for name in names))
        return count

    def stop(self) -> None:
        """End both."""
        for process in self.processes.values():
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Text:
    """One generation: what was asked, where, and its seed where it is sampled."""

    prompt: str
    at: str
    seed: int | None

    def command(self, pair: Pair, tokens: int, *more: str) -> list[str]:
        """The command that generates it."""
        sampled = (
            []
            if self.seed is None
            else ["--temperature", str(TEMPERATURE), "--seed", str(self.seed)]
        )
        words = [
            "--socket",
            str(pair.socket(self.at)),
            "--max-tokens",
            str(tokens),
            *sampled,
            *more,
        ]
        return [*RUN, "generate", self.prompt, *words]


def alone(text: Text, pair: Pair, tokens: int) -> Json:
    """The undisturbed text, by the verifier alone."""
    words = Text(text.prompt, "verifier", text.seed).command(
        pair, tokens, "--draft-n", "0", "--json"
    )
    told: Json = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return told


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What became of a generation; `midway`: it had not ended when they were killed."""

    code: int
    text: str
    ids: list[int]
    err: str
    midway: bool


def disturbed(
    text: Text, pair: Pair, tokens: int, roles: tuple[str, ...], count: int, *, rounds: bool
) -> Disturbed:
    """A generation in which these are killed after `count` characters, or rounds: with these its ids are known."""
    words = text.command(pair, tokens, *(("--json", "--verbose") if rounds else ()))
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    assert process.stderr is not None
    sign = process.stdout.read(1) if not rounds else b""
    while not rounds and len(sign) < count and (more := process.stdout.read(count - len(sign))):
        sign += more
    for _ in range(count if rounds else 0):
        process.stderr.readline()
    midway = process.poll() is None
    for role in roles:
        pair.kill(role)
    out, err = process.communicate(timeout=120)
    if not rounds:
        return Disturbed(
            process.returncode, (sign + out).decode().removesuffix("\n"), [], err.decode(), midway
        )
    told = json.loads(out or b"{}")
    return Disturbed(
        process.returncode, told.get("text", ""), told.get("token_ids", []), err.decode(), midway
    )


def same(text: Text, expected: Json, got: Disturbed, target: LlamaVerifier | None) -> str:
    """identical, near tie or different."""
    if got.text == expected["text"]:
        return "identical"
    alone, prompt = expected["token_ids"], expected["prompt_token_ids"]
    assert isinstance(alone, list)
    assert isinstance(prompt, list)
    at = next((i for i, (a, b) in enumerate(zip(alone, got.ids, strict=False)) if a != b), None)
    if target is None or at is None:
        return "different"
    noise = None if text.seed is None else (TEMPERATURE, text.seed)
    tie = near_tie(target, [*prompt, *alone[:at]], {alone[at], got.ids[at]}, noise)
    return "near tie" if tie else "different"


def main() -> None:
    """Run, print, exit 1 where something differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", choices=["sim", "bundled"], default="sim")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logs.configure("error")
    rng, real = random.Random(args.seed), args.models == "bundled"
    outcomes: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    midway = 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        pair = Pair(Path(folder), BUNDLED if real else SIM)
        ends.callback(pair.stop)
        target = ends.enter_context(referee(bundled("target.gguf"))) if real else None
        for role in ("verifier", "drafter"):
            pair.start(role)
        for number, prompt in enumerate(prompts(args.kills)):
            pair.ready()
            roles = rng.choice([("verifier",), ("drafter",), ("verifier", "drafter")])
            text = Text(
                prompt, rng.choice(["verifier", "drafter"]), number if number % 3 == 2 else None
            )
            expected = alone(text, pair, args.tokens)
            whole = (
                args.tokens // 4 if real else len(str(expected["text"]))
            )  # most rounds have up to 4 ids
            got = disturbed(
                text, pair, args.tokens, roles, 1 + int(rng.random() * whole * 0.95), rounds=real
            )
            outcome = f"exit code {got.code}" if got.code else same(text, expected, got, target)
            midway += got.midway
            outcomes[outcome] += 1
            killed["+".join(roles)] += 1
            if outcome not in ("identical", "near tie"):
                print(
                    f"text {number} at the {text.at}, {roles} killed: {outcome}\n{expected['text']!r}\n{got}"
                )
        pair.ready()
        time.sleep(GRACE + 0.5)
        left = pair.left()
    counts = {"kills": args.kills, "midway": midway, "killed": dict(killed)}
    result = counts | {"texts": dict(outcomes), "sessions_left": left}
    print(json.dumps(result) if args.json else result)
    raise SystemExit(1 if left or outcomes["identical"] + outcomes["near tie"] != args.kills else 0)


if __name__ == "__main__":
    main()
