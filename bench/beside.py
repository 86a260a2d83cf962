"""Hold a verifier without drafters against llama-server: start, memory, first token, speed.

    python bench/beside.py --llama-server FILE [--models FILE,...] [--threads 1,2] [--repeats N]
                           [--ids N] [--parts N] [--tokens N] [--rounds N] [--turns N]
                           [--ctx N] [--slots N] [--json]

Both have the same cells, slots and threads. Both are started --repeats times, each timed until
/health answers 200. Then they take turns: a prompt of --ids random ids, in --parts requests each of
which has more of it; --rounds answers of --tokens to it; as many next turns, each of the same text
and 60 other ids more; and later turns of the last of these. Parts and rounds are short, since the
speed of a virtual machine may change by a fifth from one second to the next. Nothing is drafted. A
client in this process reads both streams in the same way. `ratio` is ours by theirs: the median of
the pairs, each measured one after the other. `cpu` is the processor time of the process and its
children, which a busy machine changes less than the time by the clock. The load is printed.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Any

from command_line import Options
from live import LOADING_S, command, free_port

from specmesh.paths import bundled

MORE = 60  # ids of a next turn after the answer
OF_TURN = 24  # tokens of the answers of next turns
LEAST_ID = 1000  # smaller ones may be special tokens
TICK = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.005  # between two looks at /health

Json = dict[str, Any]
NO_DRAFTS: Json = {"draft_n": 0}
Figures = dict[str, float]
Pairs = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How a server is asked.

    wish: returns a request's body, for ids and a number of tokens. ids: returns those of an event.
    counts: returns the drafts tested and accepted, from the last event.
    """

    name: str
    path: str
    wish: Callable[[list[int], int], Json]
    ids: Callable[[Json], list[int]]
    counts: Callable[[Json], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    dialect: Dialect
    pid: int
    port: int

    @property
    def name(self) -> str:
        """Return "ours" or "theirs"."""
        return self.dialect.name


def our_wish(ids: list[int], tokens: int) -> Json:
    """Return the body of a request to us."""
    body: Json = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "stream": True}
    return body | {"ignore_eos": True}


def their_wish(ids: list[int], tokens: int) -> Json:
    """Return the body of a request to llama-server."""
    body: Json = {"prompt": ids, "n_predict": tokens, "temperature": 0, "stream": True}
    return body | {"ignore_eos": True, "return_tokens": True, "cache_prompt": True}


def our_ids(event: Json) -> list[int]:
    """Return the ids of an event of ours."""
    ids: list[int] = event.get("specmesh", {}).get("token_ids", [])
    return ids


def their_ids(event: Json) -> list[int]:
    """Return the ids of an event of llama-server."""
    ids: list[int] = event.get("tokens", [])
    return ids


def our_counts(event: Json) -> tuple[int, int]:
    """Return the drafts of an answer of ours."""
    report = event.get("specmesh", {}).get("report", {})
    return report.get("drafted", 0), report.get("accepted", 0)


def their_counts(event: Json) -> tuple[int, int]:
    """Return the drafts of an answer of llama-server."""
    timings = event.get("timings", {})
    return timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)


OURS = Dialect(name="ours", path="/v1/completions", wish=our_wish, ids=our_ids, counts=our_counts)
THEIRS = Dialect(
    name="theirs", path="/completion", wish=their_wish, ids=their_ids, counts=their_counts
)

# --- processes


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = (task / "children").read_text().split()
        for child in children:
            found += family(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and its children, ended ones too."""
    ticks = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICK


def resident_mb(pids: list[int]) -> float:
    """Return the resident memory of processes, pages that several share once for each."""
    total = 0
    for one in pids:
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total / 1024


def is_healthy(port: int) -> bool:
    """Return True if /health answers 200."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
        except (OSError, HTTPException):
            return False
        return answer.status == 200


@contextmanager
def started(words: list[str], port: int, log: Path) -> Iterator[tuple[int, Figures]]:
    """Run a server; yield its process and what its start took."""
    began = time.perf_counter()
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file)
    try:
        while not is_healthy(port):
            late = time.perf_counter() - began > LOADING_S
            if late or process.poll() is not None:
                raise SystemExit(f"it did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(LOOK_S)
        seconds = time.perf_counter() - began
        figures = {
            "start s": seconds,
            "start cpu s": cpu_seconds(process.pid),
            "resident MB": resident_mb([process.pid]),
            "with children MB": resident_mb(family(process.pid)),
        }
        yield process.pid, figures
    finally:
        process.terminate()
        process.wait(60)


@dataclass(frozen=True, slots=True)
class Setting:
    """The options that both servers have."""

    model: str
    threads: int
    ctx: int
    slots: int


@contextmanager
def ours(
    setting: Setting, folder: Path, options: Sequence[str] = ()
) -> Iterator[tuple[Server, Figures]]:
    """Run a verifier, with more options."""
    port = free_port()
    words = command(
        "verifier",
        model=setting.model,
        threads=setting.threads,
        ctx=setting.ctx,
        max_sessions=setting.slots,
        http=f"127.0.0.1:{port}",
        bind=f"tcp://127.0.0.1:{free_port()}",
        socket=folder / f"{port}.sock",
        log_level="warning",
    )
    words += ["--insecure-no-auth", *options]
    with started(words, port, folder / "ours.log") as (pid, figures):
        yield Server(OURS, pid, port), figures


@contextmanager
def theirs(
    program: Path, setting: Setting, folder: Path, more: Sequence[str] = ()
) -> Iterator[tuple[Server, Figures]]:
    """Run a llama-server, with more options."""
    port = free_port()
    options: dict[str, object] = {
        "model": setting.model,
        "threads": setting.threads,
        "threads-batch": setting.threads,
        "ctx-size": setting.ctx * setting.slots,
        "parallel": setting.slots,
        "host": "127.0.0.1",
        "port": port,
        "gpu-layers": 0,
    }
    words = [str(program), "--kv-unified"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    words += more
    with started(words, port, folder / "theirs.log") as (pid, figures):
        yield Server(THEIRS, pid, port), figures


# --- requests


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a client saw.

    first_s: seconds to the first event with ids. rest_s: seconds for each id of later ones.
    token_s: seconds for each id, from the request on.
    """

    first_s: float
    rest_s: float
    token_s: float
    cpu_s: float
    ids: list[int]
    drafted: int
    accepted: int


def ask(server: Server, ids: list[int], tokens: int, fields: Json | None = None) -> Answer:
    """Generate so many tokens after a prompt of ids. fields: more of the request's body."""
    wish = server.dialect.wish(ids, tokens) | (fields or {})
    body = json.dumps(wish)
    found: list[int] = []
    drafts = (0, 0)
    at_first = 0
    cpu = cpu_seconds(server.pid)
    first = last = began = time.perf_counter()
    with closing(HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("POST", server.dialect.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{server.name}: {response.read(500)!r}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            drafts = max(drafts, server.dialect.counts(event))
            fresh = server.dialect.ids(event)
            if not fresh:
                continue
            last = time.perf_counter()
            if not found:
                first = last
                at_first = len(fresh)
            found += fresh
    spent = cpu_seconds(server.pid) - cpu
    rest = (last - first) / max(len(found) - at_first, 1)
    drafted, accepted = drafts
    return Answer(
        first_s=first - began,
        rest_s=rest,
        token_s=(last - began) / max(len(found), 1),
        cpu_s=spent,
        ids=found,
        drafted=drafted,
        accepted=accepted,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """How long the texts are.

    ids: of the prompt. parts: in which it is read. tokens: of an answer. rounds: answers to the
    same text, and next turns of it. turns: of the whole conversation.
    """

    ids: int
    parts: int
    tokens: int
    rounds: int
    turns: int


def random_ids(rng: random.Random, count: int) -> list[int]:
    """Return so many ids of ordinary tokens."""
    return [rng.randrange(LEAST_ID, 40_000) for _ in range(count)]


class Duel:
    """Asks both servers in turn and keeps what each took, as pairs of ours and theirs."""

    def __init__(self, pairs: Pairs, us: Server, them: Server) -> None:
        self._pairs = pairs
        self._us = us
        self._them = them
        self._asked = 0

    def answers(self, texts: dict[str, list[int]], tokens: int) -> dict[str, Answer]:
        """Ask each for an answer to its text. The one that is asked first changes."""
        self._asked += 1
        order = [self._us, self._them] if self._asked % 2 else [self._them, self._us]
        return {one.name: ask(one, texts[one.name], tokens, NO_DRAFTS) for one in order}

    def note(
        self, name: str, answers: dict[str, Answer], figure: Callable[[Answer], float]
    ) -> None:
        """Keep one figure of both answers."""
        self._pairs[name].append((figure(answers["ours"]), figure(answers["theirs"])))

    def _read(self, prompt: list[int], parts: int) -> None:
        """Have both read a prompt part by part, in turn; keep what all parts took."""
        seconds = {"ours": 0.0, "theirs": 0.0}
        cpu_seconds = {"ours": 0.0, "theirs": 0.0}
        for part in range(1, parts + 1):
            begun = prompt[: len(prompt) * part // parts]
            for name, answer in self.answers({"ours": begun, "theirs": begun}, 1).items():
                seconds[name] += answer.first_s
                cpu_seconds[name] += answer.cpu_s
        self._pairs["first token s"].append((seconds["ours"], seconds["theirs"]))
        self._pairs["first token cpu s"].append((cpu_seconds["ours"], cpu_seconds["theirs"]))

    def converse(self, lengths: Lengths, rng: random.Random) -> None:
        """Read a prompt, answer it, and go on with it."""
        prompt = random_ids(rng, lengths.ids)
        read = {"ours": prompt, "theirs": prompt}
        self._read(prompt, lengths.parts)
        for _ in range(lengths.rounds):
            spoken = self.answers(read, lengths.tokens)
            self.note("decode ms", spoken, lambda answer: 1e3 * answer.rest_s)
            self.note("decode cpu ms", spoken, lambda answer: 1e3 * answer.cpu_s / lengths.tokens)
        for turn in range(2, lengths.turns + 1):
            said = {name: read[name] + spoken[name].ids[:-1] for name in read}
            for _ in range(lengths.rounds if turn == 2 else 1):
                more = random_ids(rng, MORE)
                read = {name: text + more for name, text in said.items()}
                spoken = self.answers(read, OF_TURN)
                self.note(f"turn {turn} s", spoken, lambda answer: answer.first_s)


def measured(program: Path, setting: Setting, repeats: int, lengths: Lengths) -> Pairs:
    """Return pairs of figures, ours and theirs, of so many starts."""
    pairs: Pairs = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(repeats):
            with (
                ours(setting, folder) as (us, ours_took),
                theirs(program, setting, folder) as (them, theirs_took),
            ):
                for figure, value in ours_took.items():
                    pairs[figure].append((value, theirs_took[figure]))
                time.sleep(4)  # until nothing of a start goes on
                Duel(pairs, us, them).converse(lengths, random.Random(number))
                then = resident_mb([us.pid]), resident_mb([them.pid])
                pairs["resident then MB"].append(then)
    return pairs


def main() -> None:
    """Measure and print."""
    parser = Options(__doc__)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.option("--models", "")
    parser.option("--threads", "2")
    parser.option("--repeats", 5)
    parser.option("--ids", 1000)
    parser.option("--parts", 1)
    parser.option("--tokens", 32)
    parser.option("--rounds", 8)
    parser.option("--turns", 2)
    parser.option("--ctx", 4096)
    parser.option("--slots", 8)
    parser.switch("--json")
    args = parser.parse_args()
    models = args.models.split(",") if args.models else [bundled("target.gguf")]
    for model in models:
        for threads in map(int, args.threads.split(",")):
            setting = Setting(model, threads, args.ctx, args.slots)
            lengths = Lengths(
                ids=args.ids,
                parts=args.parts,
                tokens=args.tokens,
                rounds=args.rounds,
                turns=args.turns,
            )
            pairs = measured(args.llama_server, setting, args.repeats, lengths)
            if args.json:
                print(json.dumps({"model": model, "threads": threads, "pairs": pairs}))
            else:
                show(f"{Path(model).stem}, threads {threads}", pairs)


def show(title: str, pairs: Pairs) -> None:
    """Print a table: the medians of both, and of the ratio of each pair, least and most."""
    print(f"\n{title}; load {os.getloadavg()[0]:.1f}")
    print(f"{'':18} {'ours':>9} {'theirs':>9} {'ratio':>6}  least  most")
    for name, values in pairs.items():
        our = median(one for one, _ in values)
        their = median(other for _, other in values)
        ratios = [one / max(other, 1e-9) for one, other in values]
        spread = f"{median(ratios):6.3f} {min(ratios):6.2f} {max(ratios):5.2f}"
        print(f"{name:18} {our:9.3f} {their:9.3f} {spread}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
