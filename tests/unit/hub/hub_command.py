"""`specmesh models` as the tests run it."""

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from specmesh.cli import main


@dataclass
class Done:
    code: int
    out: str
    err: str


class Models:
    """`specmesh models ...` against a hub: called, in this process; by `process`, in one of its own."""

    def __init__(self, variables: dict[str, str], folder: Path) -> None:
        self.variables = variables
        self._folder = folder

    def __call__(self, *words: object) -> Done:
        with contextlib.chdir(self._folder):
            done = CliRunner().invoke(main, ["models", *map(str, words)], env=self.variables)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Done(done.exit_code, done.stdout, done.stderr)

    def start(self, *words: object, **variables: str) -> "subprocess.Popen[str]":
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "SPECMESH_"))}
        program = [sys.executable, "-m", "specmesh", "models", *map(str, words)]
        env = ours | self.variables | variables
        pipe = subprocess.PIPE
        return subprocess.Popen(program, stdout=pipe, stderr=pipe, text=True, env=env, cwd=self._folder)

    def process(self, *words: object, **variables: str) -> Done:
        with self.start(*words, **variables) as process:
            out, err = process.communicate(timeout=60)
        return Done(process.returncode, out, err)
