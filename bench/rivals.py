"""Contenders that draft at the target: ours by their sources, llama-server's by their types.

For bench/edits.py, bench/agent_loop.py and bench/prose.py. All are asked by the same client, with
the same ids, one after the other in an order that rotates; texts are greedy. `ratio` is the median
over texts of a contender's tokens per second over those of `none`, on the same text, measured by
the clock from the request on. `cpu` is the same of the processor time of the server, which a busy
machine changes less; the prompt is read before, and is no part of either. `same text` counts texts
with the ids of `none`, `near ties` those among the others that part where the target's first two
choices are closer than its kernels' rounding (bench/referee.py).

A verifier of ours has measured its steps before the next server starts, as one that has run for a
while.
"""

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from beside import Answer, Json, Server, Setting, ask, ours, theirs
from command_line import Options
from live import command, free_port, is_drafted, running, until
from referee import near_tie, referee

from specmesh.bench.texts import ratio
from specmesh.client import Client

NONE = "none"
PLAIN = "llama-server"
MAP_SIZES = "--spec-{0}-size-n 6 --spec-{0}-size-m 24"
TYPES: dict[str, str] = {
    "ngram-simple": "--spec-type ngram-simple",
    "ngram-simple 6/24": "--spec-type ngram-simple " + MAP_SIZES.format("ngram-simple"),
    "ngram-map-k": "--spec-type ngram-map-k",
    "ngram-map-k 6/24": "--spec-type ngram-map-k " + MAP_SIZES.format("ngram-map-k"),
    "ngram-map-k4v": "--spec-type ngram-map-k4v",
    "ngram-map-k4v 6/24": "--spec-type ngram-map-k4v " + MAP_SIZES.format("ngram-map-k4v"),
    "ngram-mod": "--spec-type ngram-mod",
    "ngram-mod 16/16": (
        "--spec-type ngram-mod --spec-ngram-mod-n-match 16"
        " --spec-ngram-mod-n-min 4 --spec-ngram-mod-n-max 16"
    ),
    "ngram-mod 8/24": (
        "--spec-type ngram-mod --spec-ngram-mod-n-match 8"
        " --spec-ngram-mod-n-min 4 --spec-ngram-mod-n-max 24"
    ),
    "ngram-cache": "--spec-type ngram-cache",
}
"""Options of llama-server, by the name of the contender; its defaults, and shorter n-grams."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, the tokens of its answer, and the prediction if its client has one."""

    ids: list[int]
    tokens: int
    prediction: str = ""


@dataclass(frozen=True, slots=True)
class Contender:
    """A server, and how it is asked.

    fields: of its requests. predicts: True if they have the text's prediction.
    """

    server: Server
    fields: Json
    predicts: bool = False

    def answer(self, text: Text) -> Answer:
        """Return the answer to a text whose prompt has been read already."""
        fields = dict(self.fields)
        if self.predicts:
            fields["prediction"] = {"type": "content", "content": text.prediction}
        ask(self.server, text.ids, 1, fields | {"draft_n": 0})
        return ask(self.server, text.ids, text.tokens, fields)


CALIBRATED_S = 2.0
"""Seconds after which a verifier that has measured no other width has measured all."""

Contenders = dict[str, Contender]
Turns = dict[str, list[Answer]]


def verifiers(options: Options) -> None:
    """Add the options that all these programs have."""
    options.add_argument("--llama-server", type=Path, help="the program to compare with")
    options.add_argument(
        "--verifier",
        action="append",
        default=[],
        metavar="NAME=OPTIONS",
        help='one more verifier with such options, as "mtp=--mtp auto"',
    )
    options.add_argument("--types", default=",".join(TYPES), help="of llama-server")
    options.switch("--no-ours", "llama-server only")
    options.option("--threads", 1)
    options.option("--ctx", 4096)
    options.option("--repeats", 1, "of all texts, each with servers started anew")
    options.switch("--json")


@dataclass(frozen=True, slots=True)
class Place:
    """The setting of all servers, and a folder for their sockets and logs."""

    setting: Setting
    folder: Path


def calibrate(server: Server) -> None:
    """Wait until a verifier of ours has measured its steps, which other servers would disturb."""
    client = Client(f"http://127.0.0.1:{server.port}")
    before: object = None
    while True:
        time.sleep(CALIBRATED_S)
        found = client.stats().get("steps_ms")
        if found and found == before:
            return
        before = found


@contextmanager
def our_ways(place: Place, sets: Sequence[str], *, predicts: bool = False) -> Iterator[Contenders]:
    """Run a verifier with no options, and one with each of the sets.

    The first is asked without drafts, with those of its own text and, if the texts have some, with
    their predictions; the others with all.
    """
    found: Contenders = {}
    with ExitStack() as stack:
        server, _ = stack.enter_context(ours(place.setting, place.folder))
        calibrate(server)
        found[NONE] = Contender(server, {"draft_n": 0})
        found["suffix"] = Contender(server, {"draft_n": "auto"})
        if predicts:
            found["prediction"] = Contender(server, {"draft_n": "auto"}, predicts=True)
        for each in sets:
            name, _, words = each.partition("=")
            more = shlex.split(words)
            server, _ = stack.enter_context(ours(place.setting, place.folder, more))
            calibrate(server)
            found[name] = Contender(server, {"draft_n": "auto"}, predicts=predicts)
        yield found


@contextmanager
def with_drafter(place: Place, model: str) -> Iterator[Contenders]:
    """Run a verifier to which a drafter daemon of one thread is attached."""
    address = f"tcp://127.0.0.1:{free_port()}"
    drafter = command(
        "drafter",
        connect=address,
        model=model,
        engine="llama",
        threads=1,
        ctx=place.setting.ctx,
        socket=place.folder / "drafter.sock",
        log_level="warning",
    )
    with (
        ours(place.setting, place.folder, ["--bind", address]) as (server, _),
        running(drafter, log=place.folder / "drafter.log"),
    ):
        client = Client(f"http://127.0.0.1:{server.port}")
        until(lambda: is_drafted(client))
        yield {"drafter": Contender(server, {"draft_n": "auto"})}


@contextmanager
def their_ways(place: Place, program: Path | None, types: dict[str, str]) -> Iterator[Contenders]:
    """Run a llama-server that does not draft, and one of each type. No program: none."""
    found: Contenders = {}
    with ExitStack() as stack:
        if program is not None:
            for name, words in {PLAIN: "", **types}.items():
                more = shlex.split(words)
                server, _ = stack.enter_context(theirs(program, place.setting, place.folder, more))
                found[name] = Contender(server, {})
        yield found


def chosen(names: str, types: dict[str, str]) -> dict[str, str]:
    """Return the types of a list of names. Raise SystemExit for a name that is none."""
    found: dict[str, str] = {}
    for name in filter(None, names.split(",")):
        if name not in types:
            raise SystemExit(f"--types: {name} is none of {', '.join(types)}")
        found[name] = types[name]
    return found


@contextmanager
def contending(
    place: Place, args: argparse.Namespace, types: dict[str, str], *, predicts: bool = False
) -> Iterator[Contenders]:
    """Run ours, unless --no-ours, and llama-server with these types of drafts; all are warm."""
    found: Contenders = {}
    with ExitStack() as stack:
        if not args.no_ours:
            found |= stack.enter_context(our_ways(place, args.verifier, predicts=predicts))
            if "drafter" in args:
                found |= stack.enter_context(with_drafter(place, args.drafter))
        found |= stack.enter_context(their_ways(place, args.llama_server, types))
        warm_up(found)
        yield found


def answers_of(
    args: argparse.Namespace,
    setting: Setting,
    types: dict[str, str],
    texts: Sequence[Text],
    *,
    predicts: bool = False,
) -> Turns:
    """Return the answers of all contenders, each --repeats times with servers started anew."""
    turns: Turns = defaultdict(list)
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as name:
            place = Place(setting, Path(name))
            with contending(place, args, types, predicts=predicts) as contenders:
                for contender, answers in take_turns(contenders, texts, noted).items():
                    turns[contender] += answers
    return turns


def take_turns(
    contenders: Contenders, texts: Sequence[Text], note: Callable[[str, Answer], None]
) -> Turns:
    """Have every contender answer every text, in an order that rotates. note: told of each."""
    names = list(contenders)
    turns: Turns = defaultdict(list)
    for number, text in enumerate(texts):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found = contenders[name].answer(text)
            turns[name].append(found)
            note(name, found)
    return turns


def noted(name: str, answer: Answer) -> None:
    """Print an answer's speed to stderr, as it comes."""
    drafts = f"{answer.accepted}/{answer.drafted} drafts"
    speed = f"{1 / answer.token_s:7.2f} tokens/s, {answer.cpu_s:7.2f} s of processor time"
    print(f"{name:20} {speed}, {drafts}", file=sys.stderr, flush=True)


def warm_up(contenders: Contenders) -> None:
    """Have every contender answer a short text of ids that no text has."""
    ids = list(range(1000, 1064))
    for contender in contenders.values():
        ask(contender.server, ids, 16, contender.fields)


def rows(turns: Turns, texts: Sequence[Text], model: str) -> list[Json]:
    """Return a row for each contender, beside `none` or what comes first.

    texts: that each contender has answered, perhaps several times over.
    model: of the target, which judges the answers that differ.
    """
    first = NONE if NONE in turns else next(iter(turns))
    base = turns[first]
    ties = near_ties(turns, base, texts, model)
    found: list[Json] = []
    for name, answers in turns.items():
        rates: list[float] = []
        cpu: list[float] = []
        same = 0
        for one, other in zip(answers, base, strict=True):
            rates.append(other.token_s / one.token_s)
            if one.cpu_s:  # a short text of a tiny model takes less than a tick
                cpu.append(other.cpu_s / one.cpu_s)
            same += int(one.ids == other.ids)
        drafted = sum(answer.drafted for answer in answers)
        accepted = sum(answer.accepted for answer in answers)
        tokens = sum(len(answer.ids) for answer in answers)
        row: Json = {
            "contender": name,
            "tok/s": round(median(1 / answer.token_s for answer in answers), 2),
            "ratio": round(median(rates), 3),
            "least": round(min(rates), 2),
            "most": round(max(rates), 2),
            "cpu": round(median(cpu), 3) if cpu else None,
            "acceptance": ratio(accepted, drafted, 3),
            "drafts/token": ratio(drafted, tokens, 2),
            "same text": f"{same}/{len(answers)}",
            "near ties": ties[name],
        }
        found.append(row)
    return found


def near_ties(
    turns: Turns, base: Sequence[Answer], texts: Sequence[Text], model: str
) -> dict[str, int]:
    """Return by contender how many texts part at a near tie from those that `base` has."""
    differing: list[tuple[str, list[int], Answer, Answer]] = []
    n_ctx = 0
    for name, answers in turns.items():
        for number, (one, other) in enumerate(zip(answers, base, strict=True)):
            if one.ids == other.ids:
                continue
            prompt = texts[number % len(texts)].ids
            differing.append((name, prompt, one, other))
            n_ctx = max(n_ctx, len(prompt) + len(other.ids))
    found = dict.fromkeys(turns, 0)
    if differing:
        with referee(model, n_ctx) as engine:
            for name, prompt, one, other in differing:
                found[name] += near_tie(engine, prompt, other.ids, one.ids)
    return found


def show(title: str, found: list[Json]) -> None:
    """Print a table of rows."""
    print(f"\n{title}; load {os.getloadavg()[0]:.1f}")
    names, *columns = found[0]
    print(f"{names:20} " + " ".join(f"{column:>12}" for column in columns))
    for row in found:
        cells: list[str] = []
        for column in columns:
            value = "-" if row[column] is None else row[column]
            cells.append(f"{value:>12}")
        print(f"{row[names]:20} " + " ".join(cells), flush=True)
