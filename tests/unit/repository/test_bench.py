"""bench/: each program can be imported, and says how it is used."""

import runpy
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parents[3] / "bench").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_help(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    if "ArgumentParser" not in path.read_text(encoding="utf-8"):  # what the programs share
        runpy.run_path(str(path))
        return
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out[:6]) == (0, "usage:")
