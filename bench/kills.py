"""kill -9 of either daemon at random moments: the same texts, and nothing left behind.

    python bench/kills.py [--kills N] [--tokens N] [--seed S] [--models sim|bundled] [--json]

Real daemons. For each kill one text is generated, at the drafter's socket or the verifier's,
greedy or sampled, and in the middle of it the verifier, the drafter or both are killed and started
again. Each text is compared with that of the verifier alone. At the end, and after the grace,
neither daemon may hold a session. With the bundled pair a text may differ at a near tie, because
ids that were decoded in steps are prefilled in batches. The exit code is 1 for any other
difference, a failed generation, or a session that is left.
"""

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

from command_line import Options
from held_out import prompts
from live import until
from referee import near_tie, referee

from specmesh import logs
from specmesh.client import Client
from specmesh.core.fields import Json, ids_at, number_at
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.paths import bundled

ADDRESS = "tcp://127.0.0.1:7398"
GRACE = 3.0
RUN = [sys.executable, "-m", "specmesh"]
OPTIONS = ["--threads", "1", "--ctx", "1024", "--max-sessions", "4"]
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
        """Start a daemon, which writes on in the log of the one before."""
        engine, model = self.models[role]
        command = [*RUN, role, *OPTIONS, "--engine", engine, "--model", model]
        command += ["--socket", str(self.socket(role))]
        if role == "verifier":
            command += ["--bind", ADDRESS, "--grace", str(GRACE)]
        else:
            command += ["--connect", ADDRESS]
        with (self.folder / f"{role}.log").open("ab") as file:
            self.processes[role] = subprocess.Popen(command, stdout=file, stderr=file)

    def kill(self, role: str) -> None:
        """Kill a daemon by SIGKILL, and start it again at once."""
        self.processes[role].send_signal(signal.SIGKILL)
        self.processes[role].wait()
        self.start(role)

    def socket(self, role: str) -> Path:
        """Return the socket of a daemon's API."""
        return self.folder / f"{role}.sock"

    def ready(self) -> None:
        """Wait until both serve, the drafter attached."""
        until(lambda: bool(Client(self.socket("verifier")).get("/stats").get("peers")))
        until(lambda: Client(self.socket("drafter")).get("/health").get("status") == "ok")

    def left(self) -> int:
        """Return the number of sessions that the daemons hold, with clients or without."""
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
    """One request: its prompt, its daemon, and its seed if it is sampled."""

    prompt: str
    at: str
    seed: int | None

    def command(self, pair: Pair, tokens: int, *more: str) -> list[str]:
        """Return the command that generates it."""
        command = [*RUN, "generate", self.prompt, "--socket", str(pair.socket(self.at))]
        command += ["--max-tokens", str(tokens), *more]
        if self.seed is not None:
            command += ["--temperature", str(TEMPERATURE), "--seed", str(self.seed)]
        return command


def alone(text: Text, pair: Pair, tokens: int) -> Json:
    """Return the undisturbed text, by the verifier alone."""
    words = Text(text.prompt, "verifier", text.seed).command(
        pair, tokens, "--draft-n", "0", "--json"
    )
    told: Json = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return told


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbed:
    """The outcome of a generation whose daemons were killed."""

    code: int
    text: str
    ids: list[int]
    err: str
    midway: bool  # it had not ended when they were killed


def disturbed(
    text: Text, pair: Pair, tokens: int, roles: tuple[str, ...], count: int, *, rounds: bool
) -> Disturbed:
    """Generate a text, and kill these daemons after `count` characters.

    rounds: kill them after as many rounds instead; the ids are then known.
    """
    more = ("--json", "--verbose") if rounds else ()
    process = subprocess.Popen(
        text.command(pair, tokens, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    begin = b""
    if rounds:
        for _ in range(count):
            process.stderr.readline()
    else:
        begin = process.stdout.read(1)
        while len(begin) < count:
            part = process.stdout.read(count - len(begin))
            if not part:
                break
            begin += part
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


def same(text: Text, expected: Json, got: Disturbed, target: LlamaVerifier | None) -> str:
    """Return "identical", "near tie" or "different"."""
    if got.text == expected["text"]:
        return "identical"
    noise = None if text.seed is None else (TEMPERATURE, text.seed)
    prompt = ids_at(expected, "prompt_token_ids")
    ids = ids_at(expected, "token_ids")
    if target is not None and near_tie(target, prompt, ids, got.ids, noise):
        return "near tie"
    return "different"


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
    rng = random.Random(args.seed)
    real = args.models == "bundled"
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
            seed = number if number % 3 == 2 else None
            text = Text(prompt, rng.choice(["verifier", "drafter"]), seed)
            expected = alone(text, pair, args.tokens)
            whole = len(str(expected["text"]))
            if real:
                whole = args.tokens // 4  # rounds, most of which have up to 4 ids
            count = 1 + int(rng.random() * whole * 0.95)
            got = disturbed(text, pair, args.tokens, roles, count, rounds=real)
            outcome = f"exit code {got.code}" if got.code else same(text, expected, got, target)
            midway += int(got.midway)
            outcomes[outcome] += 1
            killed["+".join(roles)] += 1
            if outcome not in ("identical", "near tie"):
                print(f"text {number} at the {text.at}, {roles} killed: {outcome}")
                print(f"{expected['text']!r}\n{got}")
        pair.ready()
        time.sleep(GRACE + 0.5)
        left = pair.left()
    counts = {"kills": args.kills, "midway": midway, "killed": dict(killed)}
    result = counts | {"texts": dict(outcomes), "sessions_left": left}
    print(json.dumps(result) if args.json else result)
    raise SystemExit(1 if left or outcomes["identical"] + outcomes["near tie"] != args.kills else 0)


if __name__ == "__main__":
    main()
