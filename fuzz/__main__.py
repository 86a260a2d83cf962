"""Every target under atheris for a while: python -m fuzz [--seconds 60] [--target NAME]... [--keep].

An input that breaks a target is written into its corpus, where the test suite finds it: fix what it shows, keep it.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz.reach import worth_keeping
from fuzz.targets import CORPUS, TARGETS, corpus

LONGEST = {"codec": 2048, "verifier_session": 400, "drafter_session": 400}
"""Most bytes of an input, by target."""

SLOWEST_S, MEMORY_MB = 10, 1024
"""An input that takes longer, or more, breaks its target too."""


def fuzz(target: str, seconds: int, *, keep: bool) -> bool:
    """Run one target from its corpus; whether nothing broke it. keep: add what reached new code to the corpus."""
    kept = CORPUS / target
    with tempfile.TemporaryDirectory() as found:
        limits = [f"-max_len={LONGEST[target]}", f"-timeout={SLOWEST_S}", f"-rss_limit_mb={MEMORY_MB}"]
        told = ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={kept}/"]
        print(f"--- {target}: {seconds} s", flush=True)
        survived = _guided(target, found, str(kept), f"-max_total_time={seconds}", *limits, *told)
        if keep and survived:
            for path in worth_keeping(target, corpus(target), Path(found).iterdir()):
                shutil.copy(path, kept / path.name[:12])
    return survived


def _guided(target: str, *options: str) -> bool:
    command = [sys.executable, "-m", "fuzz.guided", target, *options]
    return subprocess.run(command, check=False, cwd=Path(__file__).parents[1]).returncode == 0


def main() -> None:
    """Exit code 1 where a target was broken."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--target", choices=TARGETS, action="append", help="this one; may be given again")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach new code to the corpus")
    args = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit("atheris is not installed: pip install -e '.[fuzz]' (Linux)")
    targets = args.target or TARGETS
    broken = [name for name in targets if not fuzz(name, max(args.seconds // len(targets), 1), keep=args.keep)]
    if broken:
        raise SystemExit(f"broken: {', '.join(broken)}; the input lies in fuzz/corpus, the test suite repeats it")


if __name__ == "__main__":
    main()
