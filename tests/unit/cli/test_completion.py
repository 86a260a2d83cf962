"""`specmesh completion`: its script in the shell itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OFFERS = """eval "$(specmesh completion bash)"; compopt() { :; }; COMP_WORDS=(specmesh $1)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _specmesh_completion specmesh; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash(tmp_path: Path):
    """What it offers for a line whose last word is being typed: commands, and the names of models."""
    program, model = tmp_path / "specmesh", tmp_path / "models" / "org" / "small-Q4.gguf"
    lines = (f"#!{sys.executable}", "import sys", f"sys.path.insert(0, {str(ROOT)!r})", "from specmesh.cli import main")
    program.write_text("\n".join((*lines, "main()\n")))
    program.chmod(0o755)
    model.parent.mkdir(parents=True)
    model.write_bytes(b"GGUF")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    folders = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SPECMESH_MODELS_DIR": str(tmp_path / "models")}
    for words, offered in (("ver", "verifier"), ("drafter --model org", "org/small-Q4.gguf")):
        script = ["bash", "-c", OFFERS, "bash", words]
        done = subprocess.run(script, env=kept | folders, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{offered}\n", "")
