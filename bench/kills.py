"""kill -9 of either daemon at random moments: the same texts, and nothing left behind.

    python bench/kills.py [--kills N] [--tokens N] [--seed S] [--models sim|bundled] [--json]

Real daemons. For each kill one text is generated, at the drafter's socket or the verifier's,
greedy or sampled, and in the middle of it the verifier, the drafter or both are killed and started
again. Each text is compared with that of the verifier alone. At the end, and after the grace,
neither daemon may hold a session. With the bundled pair a text may differ at a near tie, because
ids that were decoded in steps are prefilled in batches. The exit code is 1 for any other
difference, a failed generation, or a session that is left.
"""

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from command_line import Options
from held_out import prompts
from live import Process, command, is_drafted, start, until
from referee import near_tie, referee

from specmesh import logs
from specmesh.client import Client
from specmesh.core.fields import Json, ids_at, number_at
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.paths import bundled

ADDRESS = "tcp://127.0.0.1:7398"
GRACE = 3.0
LIMITS = {"threads": 1, "ctx": 1024, "max_sessions": 4}
LINKS: dict[str, dict[str, object]] = {
    "verifier": {"bind": ADDRESS, "grace": GRACE},
    "drafter": {"connect": ADDRESS},
}
SIM = {"verifier": ("sim", "step_ms=8"), "drafter": ("sim", "draft_ms=0.5,alpha=0.9")}
BUNDLED = {
    "verifier": ("llama", bundled("target.gguf")),
    "drafter": ("llama", bundled("drafter.gguf")),
}
HELD = {"verifier": ("live", "kept"), "drafter": ("live", "interrupted")}
"""Kinds of sessions that a daemon holds, with clients or without."""
TEMPERATURE = 0.8
ALIKE = ("identical", "near tie")


@dataclass(slots=True)
class Pair:
    """Both daemons, each started again whenever it is killed."""

    folder: Path
    models: dict[str, tuple[str, str]]
    processes: dict[str, Process] = field(default_factory=dict)

    def start(self, role: str) -> None:
        """Start a daemon, which writes on in the log of the one before."""
        engine, model = self.models[role]
        path = self.socket(role)
        options = LIMITS | LINKS[role]
        words = command(role, engine=engine, model=model, socket=path, **options)
        self.processes[role] = start(words, log=self.folder / f"{role}.log")

    def kill(self, role: str) -> None:
        """Kill a daemon by SIGKILL, and start it again at once."""
        self.processes[role].kill()
        self.processes[role].wait()
        self.start(role)

    def socket(self, role: str) -> Path:
        """Return the socket of a daemon's API."""
        return self.folder / f"{role}.sock"

    def ready(self) -> None:
        """Wait until both serve, the drafter attached."""
        verifier = Client(self.socket("verifier"))
        drafter = Client(self.socket("drafter"))
        until(lambda: is_drafted(verifier))
        until(lambda: drafter.get("/health").get("status") == "ok")

    def left(self) -> int:
        """Return the number of sessions that the daemons hold."""
        count = 0.0
        for role, names in HELD.items():
            stats = Client(self.socket(role)).get("/stats")
            for name in names:
                count += number_at(stats, f"sessions.{name}")
        return int(count)

    def stop(self) -> None:
        """End both."""
        for process in self.processes.values():
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Text:
    """One request: its prompt, its daemon, and its seed if it is sampled."""

    prompt: str
    at: str
    seed: int | None

    def command(self, pair: Pair, tokens: int, *more: str) -> list[str]:
        """Return the command that generates it."""
        words = command("generate", socket=pair.socket(self.at), max_tokens=tokens)
        if self.seed is not None:
            words += ["--temperature", str(TEMPERATURE), "--seed", str(self.seed)]
        return [*words, *more, self.prompt]


def alone(text: Text, pair: Pair, tokens: int) -> Json:
    """Return the undisturbed text, by the verifier alone."""
    undisturbed = replace(text, at="verifier")
    words = undisturbed.command(pair, tokens, "--draft-n", "0", "--json")
    done = subprocess.run(words, capture_output=True, check=True)
    answer: Json = json.loads(done.stdout)
    return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbed:
    """The outcome of a generation whose daemons were killed."""

    code: int
    text: str
    ids: list[int]
    err: str
    midway: bool  # it had not ended when they were killed


def disturbed(
    text: Text, pair: Pair, tokens: int, roles: Sequence[str], count: int, *, rounds: bool
) -> Disturbed:
    """Generate a text, and kill these daemons after `count` characters.

    rounds: kill them after as many rounds instead; the ids are then known.
    """
    more: tuple[str, ...] = ()
    if rounds:
        more = ("--json", "--verbose")
    words = text.command(pair, tokens, *more)
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, bufsize=0)
    assert process.stdout is not None
    assert process.stderr is not None
    begin = b""
    if rounds:
        for _ in range(count):
            process.stderr.readline()
    else:
        begin = read_some(process.stdout, count)
    midway = process.poll() is None
    for role in roles:
        pair.kill(role)
    out, err = process.communicate(timeout=120)
    answer: Json = {"text": (begin + out).decode().removesuffix("\n")}
    if rounds:
        answer = json.loads(out or b"{}")
    return Disturbed(
        code=process.returncode,
        text=str(answer.get("text", "")),
        ids=ids_at(answer, "token_ids"),
        err=err.decode(),
        midway=midway,
    )


def read_some(file: IO[bytes], count: int) -> bytes:
    """Return `count` bytes of a pipe, or less if it ends before."""
    found = b""
    while len(found) < count:
        part = file.read(count - len(found))
        if not part:
            break
        found += part
    return found


def same(text: Text, expected: Json, got: Disturbed, target: LlamaVerifier | None) -> str:
    """Return the outcome of a text: one of ALIKE, "different", or its exit code."""
    if got.code:
        return f"exit code {got.code}"
    if got.text == expected["text"]:
        return "identical"
    noise: tuple[float, int] | None = None
    if text.seed is not None:
        noise = (TEMPERATURE, text.seed)
    prompt = ids_at(expected, "prompt_token_ids")
    ids = ids_at(expected, "token_ids")
    if target is not None and near_tie(target, prompt, ids, got.ids, noise):
        return "near tie"
    return "different"


class Trial:
    """Kills the daemons of a pair, and counts the outcomes. target: of real models."""

    def __init__(self, pair: Pair, target: LlamaVerifier | None, args: argparse.Namespace) -> None:
        self._pair = pair
        self._target = target
        self._tokens: int = args.tokens
        self._luck = random.Random(args.seed)
        self.outcomes: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self.midway = 0

    def kill_during(self, number: int, prompt: str) -> None:
        """Generate a text after the prompt, and kill daemons in the middle of it."""
        self._pair.ready()
        roles = self._luck.choice([("verifier",), ("drafter",), ("verifier", "drafter")])
        seed: int | None = None
        if number % 3 == 2:
            seed = number
        text = Text(prompt, self._luck.choice(["verifier", "drafter"]), seed)
        expected = alone(text, self._pair, self._tokens)
        rounds = self._target is not None
        whole = len(str(expected["text"]))
        if rounds:
            whole = self._tokens // 4  # most of which have up to 4 ids
        count = 1 + int(self._luck.random() * whole * 0.95)
        got = disturbed(text, self._pair, self._tokens, roles, count, rounds=rounds)
        outcome = same(text, expected, got, self._target)
        self.midway += int(got.midway)
        self.outcomes[outcome] += 1
        self.killed["+".join(roles)] += 1
        if outcome not in ALIKE:
            print(f"text {number} at the {text.at}, {roles} killed: {outcome}")
            print(f"{expected['text']!r}\n{got}")


def main() -> None:
    """Run and print; the exit code is 1 for a difference."""
    parser = Options(__doc__)
    parser.option("--kills", 50)
    parser.option("--tokens", 150)
    parser.option("--seed", 1)
    parser.add_argument("--models", choices=["sim", "bundled"], default="sim")
    parser.switch("--json")
    args = parser.parse_args()
    logs.configure("error")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        models = SIM
        target: LlamaVerifier | None = None
        if args.models == "bundled":
            models = BUNDLED
            target = stack.enter_context(referee(bundled("target.gguf")))
        pair = Pair(Path(folder), models)
        stack.callback(pair.stop)
        for role in models:
            pair.start(role)
        trial = Trial(pair, target, args)
        for number, prompt in enumerate(prompts(args.kills)):
            trial.kill_during(number, prompt)
        pair.ready()
        time.sleep(GRACE + 0.5)
        left = pair.left()
    result = {
        "kills": args.kills,
        "midway": trial.midway,
        "killed": dict(trial.killed),
        "texts": dict(trial.outcomes),
        "sessions_left": left,
    }
    print(json.dumps(result) if args.json else result)
    different = trial.outcomes.keys() - set(ALIKE)
    raise SystemExit(bool(left or different))


if __name__ == "__main__":
    main()
