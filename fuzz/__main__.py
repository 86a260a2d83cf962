"""Every target under atheris for a while: python -m fuzz [--seconds 60] [--target NAME]...

An input that breaks a target is written into its corpus, which the test suite plays: fix the cause,
keep the input.
"""

import argparse
import importlib.util
import os
import tempfile

from fuzz import CORPUS, TARGETS

LONGEST = {
    "codec": 2048,
    "verifier_session": 400,
    "drafter_session": 400,
    "drafter_windows": 400,
}
"""Most bytes of an input, by target."""

SLOWEST_S = 10  # most time of one input
MEMORY_MB = 1024  # most memory of one input


def fuzz(target: str, seconds: int) -> bool:
    """Run one target from its corpus. Return True if nothing broke it.

    libFuzzer ends its process, so it has one of its own.
    """
    print(f"--- {target}: {seconds} s", flush=True)
    options = [f"-max_len={LONGEST[target]}", f"-timeout={SLOWEST_S}", f"-rss_limit_mb={MEMORY_MB}"]
    options += [f"-max_total_time={seconds}", "-print_final_stats=1", "-verbosity=0"]
    kept = CORPUS / target
    with tempfile.TemporaryDirectory() as found:
        child = os.fork()
        if not child:
            _play(target, [found, str(kept), f"-artifact_prefix={kept}/", *options])
        return os.waitpid(child, 0)[1] == 0


def _play(target: str, options: list[str]) -> None:
    """Play inputs guided by coverage; does not return."""
    import atheris  # noqa: PLC0415 - it may not be installed

    with atheris.instrument_imports(include=["specmesh.wire", "specmesh.core", "fuzz"]):
        module = importlib.import_module(f"fuzz.{target}")

    def play(data: bytes) -> None:
        module.run(data)

    atheris.Setup([target, *options], play)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument(
        "--target", choices=TARGETS, action="append", help="this one; may be given again"
    )
    args = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit("atheris is not installed: pip install -e '.[fuzz]' (Linux)")
    targets = args.target or TARGETS
    broken = [name for name in targets if not fuzz(name, max(args.seconds // len(targets), 1))]
    if broken:
        raise SystemExit(
            f"broken: {', '.join(broken)}; the input lies in fuzz/corpus, the test suite repeats it"
        )


if __name__ == "__main__":
    main()
