"""Measure a target's own head beside llama-server's `draft-mtp`, alone and with a remote drafter.

    python bench/mtp.py [--llama-server FILE] [--n-max 1,2,3,4] [--delays 0.3,20] [--out DIR]
                        [--params 1e8] [--prompts N] [--tokens N] [--threads N] [--json]

The target is the bundled one with a head that was solved for it (tests/harness/nextn.py), made
expensive: its layers are wider and more, and its logits as they were. The head is as wide as one
of its layers. A drafter is the bundled draft model of one thread. `ratio` is to `none`.

- none, mtp: our verifier, asked with `draft_n` 0, and with drafts of its head only;
- all: of its head and of the repeats of the text;
- remote D, mtp and remote D: a drafter D ms away each way, alone and with the head;
- llama-server, mtp default, mtp N: without drafts, with those of `draft-mtp` of its default
  number, and of at most N.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from beside import Setting, ours
from command_line import Options, numbers
from held_out import prompts
from live import command, free_port, is_drafted, running, until
from referee import referee
from rivals import (
    NONE,
    Contender,
    Contenders,
    Place,
    Text,
    noted,
    rows,
    show,
    take_turns,
    their_ways,
    warm_up,
)

from specmesh import logs
from specmesh.client import Client
from specmesh.paths import bundled

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from harness.nextn import Padding, write

HIDDEN = 8192
WIDTH = 256
LAYERS = 6
"""Layers of the bundled target, which are widened too."""

CTX = 1024


def padding_of(params: float) -> Padding:
    """Return the padding that adds about so many weights."""
    of_layer = 3 * WIDTH * HIDDEN
    return Padding(HIDDEN, max(round(params / of_layer) - LAYERS, 0))


@contextmanager
def delayed(port: int, milliseconds: float) -> Iterator[int]:
    """Run a proxy that delays each way to a port; yield its own."""
    program = str(Path(__file__).with_name("delay_proxy.py"))
    words = [sys.executable, program, str(port), str(milliseconds / 1e3), "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def at_a_distance(place: Place, delay: float) -> Iterator[Contenders]:
    """Run a verifier whose drafter is so many milliseconds away each way."""
    bound = free_port()
    with ExitStack() as stack:
        more = ["--bind", f"tcp://127.0.0.1:{bound}"]
        server, _ = stack.enter_context(ours(place.setting, place.folder, more))
        drafter = command(
            "drafter",
            connect=f"tcp://127.0.0.1:{stack.enter_context(delayed(bound, delay))}",
            model=bundled("drafter.gguf"),
            engine="llama",
            threads=1,
            ctx=CTX,
            socket=place.folder / f"drafter-{delay}.sock",
            log_level="warning",
        )
        stack.enter_context(running(drafter, log=place.folder / "drafter.log"))
        client = Client(f"http://127.0.0.1:{server.port}")
        until(lambda: is_drafted(client))
        both = {"draft_n": "auto", "draft_sources": ["mtp", "remote"]}
        yield {
            f"remote {delay:g}": Contender(server, both | {"draft_sources": ["remote"]}),
            f"mtp and remote {delay:g}": Contender(server, both),
        }


@contextmanager
def our_head(place: Place) -> Iterator[Contenders]:
    """Run a verifier that nothing else drafts for."""
    with ours(place.setting, place.folder) as (server, _):
        yield {
            NONE: Contender(server, {"draft_n": 0}),
            "mtp": Contender(server, {"draft_n": "auto", "draft_sources": ["mtp"]}),
            "all": Contender(server, {"draft_n": "auto"}),
        }


def types_of(n_max: list[int]) -> dict[str, str]:
    """Return llama-server's options, by the name of the contender."""
    found = {"mtp default": "--spec-type draft-mtp"}
    for n in n_max:
        found[f"mtp {n}"] = f"--spec-type draft-mtp --spec-draft-n-max {n}"
    return found


def main() -> None:
    """Write the target, start everything, measure, and print."""
    options = Options(__doc__)
    options.add_argument("--llama-server", type=Path, help="the program to compare with")
    options.option("--n-max", "1,2,3,4", "of llama-server")
    options.option("--delays", "0.3,20", "of drafters, in milliseconds each way; empty for none")
    options.option("--params", 1e8, "weights of the padding")
    options.add_argument("--out", type=Path, help="keep the target there, or use that of before")
    options.option("--prompts", 8)
    options.option("--tokens", 96)
    options.option("--threads", 1)
    options.switch("--json")
    args = options.parse_args()
    logs.configure("error")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = args.out or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"mtp-{args.params:g}.gguf"
        if not target.is_file():
            write(target, padding=padding_of(args.params))
        with referee(str(target)) as engine:
            texts = [
                Text(engine.tokenizer.encode(one), args.tokens) for one in prompts(args.prompts)
            ]
        place = Place(Setting(str(target), args.threads, CTX, 2), Path(name))
        found = dict(stack.enter_context(our_head(place)))
        for delay in filter(None, args.delays.split(",")):
            found |= stack.enter_context(at_a_distance(place, float(delay)))
        types = types_of(numbers(args.n_max))
        found |= stack.enter_context(their_ways(place, args.llama_server, types))
        warm_up(found)
        table = rows(take_turns(found, texts, noted), texts, str(target))
    if args.json:
        print(json.dumps(table))
    else:
        show(f"a head of its own, {args.threads} threads, {args.prompts} prompts", table)


if __name__ == "__main__":
    main()
