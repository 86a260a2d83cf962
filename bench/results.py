"""Writes simulated_pairs.md: simulated pairs through the real daemons, and what `bench/padded.py` printed.

    python bench/results.py [--padded FILE] [--tokens N] [--only NAME] [--out FILE]

Nothing else should run meanwhile. The simulated pairs take about 25 minutes.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

Q8_0 = (1.0, 2.5, 3.4, 4.2, 4.9, 5.3, 4.4, 3.5, 3.7, 3.9, 4.1, 4.3, 4.5, 4.7, 4.9, 5.1, 5.3)
Q4_0 = (1.0, 1.9, 2.5, 1.6, 1.9, 2.2, 2.4, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6, 3.8)
"""Costs of 1, 2, ... rows by the cost of one: measured shapes on a CPU, the wide ones continued."""

PACKAGES = ("specmesh", "llama-cpp-python", "pyzmq", "numpy")


@dataclass(frozen=True, slots=True)
class Case:
    """A simulated pair: options of `bench/sim.py`."""

    group: str
    name: str
    options: tuple[str, ...]


def cases(tokens: int, folder: Path) -> Iterator[Case]:
    """Every pair of the record."""
    slow = (
        ("7B-like", "34.2", "1.0", "5.2", "2,3,4,5"),
        ("70B-like", "52", "1.6", "3.3", "3,4,5,6"),
    )
    for round_trip in ("0.3", "5", "20", "80"):
        for name, step, row, draft, fixed in slow:
            options = (
                "--step-ms",
                step,
                "--row-ms",
                row,
                "--draft-ms",
                draft,
                "--round-trip-ms",
                round_trip,
            )
            yield Case(
                name, f"{round_trip} ms", (*options, "--lockstep", fixed, "--tokens", str(tokens))
            )
    for round_trip in ("0.3", "5", "20", "80"):
        for alpha in ("0.1", "0.5", "0.75", "0.95"):
            options = (
                "--step-ms",
                "6.9",
                "--row-ms",
                "0.15",
                "--round-trip-ms",
                round_trip,
                "--alpha",
                alpha,
            )
            short = (
                *options,
                "--lockstep",
                "1",
                "--tokens",
                str(tokens),
                "--repeats",
                "3",
            )  # of 5 seconds each
            yield Case("fast", f"{round_trip} ms, alpha {alpha}", short)
    for name, table in (("Q8_0", Q8_0), ("Q4_0", Q4_0)):
        file = folder / f"{name}.json"
        file.write_text(
            json.dumps(
                {"steps_ms": {"0": {rows: 34.2 * cost for rows, cost in enumerate(table, 1)}}}
            )
        )
        measured = ("--steps-file", str(file), "--lockstep", "1,3,7", "--tokens", str(tokens))
        yield Case("cliffs", name, measured)
    changing = ("--alpha", "0.9/0.2", "--tokens", str(3 * tokens), "--round-trip-ms", "5")
    yield Case(
        "changing acceptance", "0.9, 0.2 and back every 300 tokens", (*changing, "--lockstep", "3")
    )


def run(case: Case) -> dict[str, object]:
    """What `bench/sim.py --json` says of it."""
    command = [sys.executable, str(Path(__file__).with_name("sim.py")), *case.options, "--json"]
    told: dict[str, object] = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return told


def rows(done: list[tuple[Case, dict[str, object]]]) -> list[str]:
    """A Markdown table."""
    lines = [
        "| pair | case | alone, tok/s | adaptive | best fixed | ideal | efficiency | of oracle |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for case, told in done:
        speeds = told["tokens_per_second"]
        assert isinstance(speeds, dict)
        fixed = f"{told['speedup_best_lockstep']:.2f}x ({told['best_lockstep']})"
        lines.append(
            f"| {case.group} | {case.name} | {speeds['alone']:.1f} | {told['speedup']:.3f}x | {fixed} | "
            f"{told['ideal_speedup']:.3f}x | {told['efficiency']:.3f} | {told['oracle_efficiency']:.3f} |"
        )
    return lines


def machine() -> str:
    """Processor, cores, system and versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = f"{names[0]}, {len(names)} cores" if names else model
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"{model}; {platform.system()}; Python {platform.python_version()}; {', '.join(found)}"


def page(done: list[tuple[Case, dict[str, object]]], padded: str) -> str:
    """The whole file."""
    return "\n".join(
        [
            "# Results",
            "",
            "Written by `python bench/results.py`; ratios are within one run, with nothing else running.",
            "",
            f"- {date.today().isoformat()}",  # noqa: DTZ011 - the day where it was run
            f"- {machine()}",
            "",
            "## Simulated pairs",
            "",
            "`bench/sim.py`: the real daemons, models that sleep, a proxy for the distance. Speed-ups are over",
            "the verifier alone, measured in the same run. Fixed: `draft_n` in every step, the drafter working ahead.",
            "Ideal: the same rule and the same text where nothing but models and distance takes time; efficiency is",
            "adaptive by ideal, in tokens per second. Oracle: ideal, and told the acceptance instead of learning it.",
            "",
            *rows(done),
            "",
            "## A padded pair, beside llama-server",
            "",
            padded,
            "",
        ]
    )


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--padded", type=Path, help="what bench/padded.py printed")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--only", help="cases whose group begins so")
    parser.add_argument("--out", type=Path, default=Path("simulated_pairs.md"))
    args = parser.parse_args()
    padded = (
        f"```text\n{args.padded.read_text().strip()}\n```"
        if args.padded
        else "Not run: `bench/padded.py` says how."
    )
    done: list[tuple[Case, dict[str, object]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(args.tokens, Path(folder)):
            if args.only is None or case.group.startswith(args.only):
                done.append((case, run(case)))
                print(rows(done)[-1], flush=True)
                args.out.write_text(page(done, padded))


if __name__ == "__main__":
    main()
