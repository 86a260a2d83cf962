"""Measure a drafter with texts longer than its context: windows beside whole texts.

    python bench/long_texts.py speed [--length N] [--factor F] [--texts N] [--tokens N] [--json]
    python bench/long_texts.py attach [--length N] [--factor F] [--json]
    python bench/long_texts.py growth [--length N] [--factor F] [--json]

The models are SmolLM2's of `make models`, F16 at the verifier and Q4_0 at the drafter. All steps
are stretched: bench/stretched.py. A drafter with `--window full` drafts only for texts that fit its
context, as before there were windows.

- speed: a prompt of N ids is continued, by a pair with `--window full` and a pair with windows, in
  turn. A step that outlasts its stretched time fails the run.
- attach: a drafter comes to a text of N ids while the verifier generates. Seconds to its first
  drafts and the ids that it read before them, with windows, and with a context as long as the text.
  Then the ids that it reads for a second turn of the text. The target has the first layer of its
  model, the drafter the first four: else the whole text is read for an hour.
- growth: a drafter's memory and time per draft at texts of 4,000 and of N ids. The models are one
  layer of random weights, made for texts of 131,072 ids.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread

import gguf

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tools"), str(ROOT / "tests")]

from harness.tiny_gguf import TinyModel, write
from live import LOADING_S, free_port, start, until
from real_models import path as real_model
from windows import texts

from specmesh import logs
from specmesh.client import Client
from specmesh.core.fields import Json, ids_at, object_at, objects_at

STRETCHED = str(Path(__file__).with_name("stretched.py"))
MACHINE = "h100-70b"
MOST = 4000  # ids that a text grows by, at most
WARM_UP = 64  # ids, after which a text has begun
CTX = 8192  # of a target


@dataclass(frozen=True, slots=True)
class Daemons:
    """A verifier and its drafter. The drafter may be started later.

    factor, draft_factor: of the times of a step and of a draft.
    """

    folder: Path
    name: str
    factor: float
    draft_factor: float

    def run(self, role: str, place: str, options: list[str], cores: set[int]) -> "Running":
        """Start a daemon on these cores."""
        path = self.folder / f"{self.name}-{role}.sock"
        link = ["--bind" if role == "verifier" else "--connect", place]
        stretch = ["--stretch", MACHINE, "--engine", "llama", "--threads", "1"]
        quiet = ["--log-level", "error", "--drain", "0", "--insecure-no-auth"]
        factor = self.factor if role == "verifier" else self.draft_factor
        command = [sys.executable, STRETCHED, MACHINE, str(factor), str(self.late)]
        process = start(
            [*command, role, "--socket", str(path), *link, *stretch, *quiet, *options], cores
        )
        return Running(Client(path), process.pid)

    @property
    def late(self) -> Path:
        """Return the file of steps that were too long."""
        return self.folder / "late"


@dataclass(frozen=True, slots=True)
class Running:
    """A daemon that was started."""

    client: Client
    pid: int

    def stats(self) -> Json:
        """Return its statistics."""
        return self.client.get("/stats")

    def seconds(self) -> float:
        """Return the processor time of its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def memory(self) -> int:
        """Return the bytes that it wrote to."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        [line] = [line for line in lines if line.startswith("Anonymous:")]
        return int(line.split()[1]) * 1024


@dataclass(slots=True)
class Text:
    """A generated text and the verifier's report of it."""

    ids: list[int]
    report: Json


def generated(client: Client, prompt: list[int], tokens: int, draft_n: object) -> Text:
    """Have a verifier continue a prompt."""
    text = Text([], {})
    for chunk in client.complete(asked(prompt, tokens, draft_n)):
        part = object_at(chunk, "specmesh")
        text.ids += part.get("token_ids", [])  # type: ignore[arg-type]
        text.report = object_at(part, "report") if "report" in part else text.report
    return text


def asked(prompt: list[int], tokens: int, draft_n: object) -> Json:
    """Return the body of a request."""
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": True,
        "draft_n": draft_n,
    }


def cut(source: Path, layers: int, out: Path, ctx: int) -> Path:
    """Write a model's first layers, for texts of `ctx` ids."""
    reader = gguf.GGUFReader(source)
    arch = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, arch)
    changed = {f"{arch}.block_count": layers, f"{arch}.context_length": ctx}
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *of = field.types
        value = changed.get(name, field.contents())
        writer.add_key_value(name, value, kind, of[-1] if of else None)
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@contextmanager
def pair(
    folder: Path, name: str, factors: tuple[float, float], verifier: list[str], drafter: list[str]
) -> Iterator[tuple[Daemons, Running, Running]]:
    """Run a verifier and, once it answers, a drafter; each has a core."""
    place = f"tcp://127.0.0.1:{free_port()}"
    pair = Daemons(folder, name, *factors)
    with ExitStack() as stack:
        target = pair.run("verifier", place, verifier, {0})
        stack.callback(ended, target)
        until(lambda: "rounds" in object_at(target.stats(), "totals"), LOADING_S)
        beside = pair.run("drafter", place, drafter, {1})
        stack.callback(ended, beside)
        until(lambda: bool(target.stats().get("peers")), LOADING_S)
        yield pair, target, beside


def ended(daemon: Running) -> None:
    """End a daemon and wait for it."""
    with suppress(ProcessLookupError):
        os.kill(daemon.pid, 15)
        os.waitpid(daemon.pid, 0)


def ids_of(client: Client, length: int) -> Iterator[list[int]]:
    """Yield texts of `length` ids."""
    for text in texts(8):
        content = text
        while True:
            ids = client.get("/tokenize", {"content": content})["tokens"]
            assert isinstance(ids, list)
            if len(ids) >= length:
                yield [int(str(token)) for token in ids[:length]]
                break
            content += text


# --- speed


def speed(args: argparse.Namespace) -> Json:
    """Return the speeds of a pair with windows and of one without."""
    target = str(real_model("smollm2-f16.gguf"))
    draft = str(real_model("smollm2-q4_0.gguf"))
    verifier = ["--model", target, "--ctx", str(CTX), "--max-sessions", "1"]
    drafter = ["--model", draft]
    runs: dict[str, list[Text]] = {"full": [], "auto": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients: dict[str, Client] = {}
        for name in runs:
            options = [*drafter, "--window", name]
            made = pair(folder, name, (args.factor, args.factor), verifier, options)
            daemons, running, _ = stack.enter_context(made)
            clients[name] = running.client
        for index, prompt in enumerate(ids_of(clients["auto"], args.length)):
            if index == args.texts:
                break
            order = list(runs) if index % 2 else list(runs)[::-1]
            for name in order:
                generated(clients[name], prompt, 1, 0)
                runs[name].append(generated(clients[name], prompt, args.tokens, "auto"))
        late = daemons.late.read_text().splitlines() if daemons.late.exists() else []
    pairs = list(zip(runs["auto"], runs["full"], strict=True))
    ratios = list[float]()
    for ours, old in pairs:
        ratios.append(number(ours, "tokens_per_second") / number(old, "tokens_per_second"))
    return {
        "length": args.length,
        "factor": args.factor,
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(median(ratios), 3),
        "same": sum(ours.ids == old.ids for ours, old in pairs),
        "drafted": {name: sum(number(text, "drafted") for text in runs[name]) for name in runs},
        "accepted": {name: sum(number(text, "accepted") for text in runs[name]) for name in runs},
        "late": late[:5],
        "late_steps": len(late),
    }


def number(text: Text, key: str) -> float:
    """Return a number of a text's report."""
    value = text.report[key]
    assert isinstance(value, int | float)
    return float(value)


# --- attach


def attach(args: argparse.Namespace) -> Json:
    """Return what a drafter reads, and how long it takes, before its first drafts."""
    found: Json = {"length": args.length}
    ctx = args.length + MOST + 96
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = cut(real_model("smollm2-f16.gguf"), 1, folder / "target.gguf", ctx)
        draft = cut(real_model("smollm2-q4_0.gguf"), 4, folder / "draft.gguf", ctx)
        place = f"tcp://127.0.0.1:{free_port()}"
        daemons = Daemons(folder, "attach", args.factor, args.factor)
        options = ["--model", str(target), "--ctx", str(ctx), "--max-sessions", "1"]
        with ExitStack() as stack:
            verifier = daemons.run("verifier", place, options, {0})
            stack.callback(ended, verifier)
            until(lambda: "rounds" in object_at(verifier.stats(), "totals"), LOADING_S)
            [prompt] = [next(ids_of(verifier.client, args.length))]
            generated(verifier.client, prompt, 1, 0)
            ways = {
                "whole": ["--window", "full", "--ctx", str(ctx)],
                "windows": [],
            }
            for way, words in ways.items():
                common = ["--model", str(draft), "--max-sessions", "1"]
                found[way] = attached(daemons, place, verifier, [*common, *words], prompt)
    return found


def attached(
    daemons: Daemons, place: str, verifier: Running, options: list[str], prompt: list[int]
) -> Json:
    """Start a drafter beside a text that is generated, and measure until it has drafted."""
    stop = Event()
    generates = Event()
    reading = Thread(target=read_until, args=(verifier.client, prompt, generates, stop))
    reading.start()
    generates.wait()
    drafter = daemons.run("drafter", place, options, {1})
    until(lambda: bool(objects_at(verifier.stats(), "peers")), LOADING_S)
    begun = time.monotonic()
    until(lambda: totals(drafter)["draft_tokens"] > 0, 1800)
    seconds = time.monotonic() - begun
    read = totals(drafter)["read"]
    ids = list(prompt)
    stop.set()
    reading.join()
    turn = generated(verifier.client, prompt, 64, 4)
    settled(drafter)
    before = totals(drafter)["read"]
    ids += turn.ids + prompt[:200]
    second = generated(verifier.client, ids, 8, 4)
    after = totals(drafter)["read"]
    ended(drafter)
    until(lambda: not objects_at(verifier.stats(), "peers"))
    return {
        "seconds": round(seconds, 3),
        "read": read,
        "new_ids": 200 + 64 + len(second.ids),
        "read_by_second_turn": after - before,
        "drafted": turn.report["drafted"],
    }


def read_until(client: Client, prompt: list[int], generates: Event, stop: Event) -> None:
    """Have a verifier continue a prompt until `stop`."""
    for chunk in client.complete(asked(prompt, MOST, 4)):
        if ids_at(object_at(chunk, "specmesh"), "token_ids"):
            generates.set()
        if stop.is_set():
            break


def totals(drafter: Running) -> dict[str, int]:
    """Return a drafter's counts since its start."""
    counts = object_at(drafter.stats(), "totals")
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def settled(drafter: Running) -> None:
    """Wait until a drafter reads no more."""
    read = [-1]

    def reads_no_more() -> bool:
        before = read[0]
        read[0] = totals(drafter)["read"]
        time.sleep(0.3)
        return read[0] == before

    until(reads_no_more)


# --- growth


def growth(args: argparse.Namespace) -> Json:
    """Return a drafter's memory and seconds per draft at texts of two lengths."""
    rows: dict[int, list[Json]] = {4000: [], args.length: []}
    ctx = 131072
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shape = TinyModel(layers=1, n_ctx=ctx)
        model = str(write(folder / "model.gguf", shape))
        options = ["--model", model, "--max-sessions", "1"]
        made = pair(folder, "growth", (args.factor, 0.0), [*options, "--ctx", str(ctx)], options)
        _, verifier, drafter = stack.enter_context(made)
        longest = next(ids_of(verifier.client, args.length))
        for length in (4000, args.length, 4000):
            prompt = longest[-length:]
            generated(verifier.client, prompt, 64, 4)
            settled(drafter)
            row = drafting(verifier, drafter, prompt, args.tokens)
            print(length, row, flush=True)
            rows[length].append(row)
    return {str(length): found for length, found in rows.items()}


def drafting(verifier: Running, drafter: Running, prompt: list[int], tokens: int) -> Json:
    """Return what a drafter's drafts cost, once a text has begun."""
    chunks = verifier.client.complete(asked(prompt, tokens, 4))
    ids: list[object] = []
    while len(ids) < WARM_UP:
        ids += ids_at(object_at(next(chunks), "specmesh"), "token_ids")
    before = totals(drafter)
    begun = drafter.seconds()
    for _ in chunks:
        pass
    seconds = drafter.seconds() - begun
    after = totals(drafter)
    drafts = after["draft_tokens"] - before["draft_tokens"]
    read = after["read"] - before["read"]
    return {
        "memory_mb": round(drafter.memory() / 1e6, 2),
        "text_mb": round(4 * len(prompt) / 1e6, 2),
        "ms_per_draft": round(seconds / drafts * 1e3, 4),
        "ms_per_id_read": round(seconds / read * 1e3, 4),
        "drafts": drafts,
        "read": read,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "attach", "growth"])
    parser.add_argument("--length", type=int)
    parser.add_argument("--factor", type=float)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    logs.configure("error")
    run, length, factor = {
        "speed": (speed, 6000, 12.0),
        "attach": (attach, 30000, 4.0),
        "growth": (growth, 100000, 0.5),
    }[args.what]
    args.length = args.length or length
    args.factor = args.factor or factor
    found = run(args)
    print(json.dumps(found, indent=1))
    if found.get("late_steps"):
        raise SystemExit("steps outlasted their stretched time: a larger --factor")


if __name__ == "__main__":
    main()
