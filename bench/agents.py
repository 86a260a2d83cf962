"""Have real command-line agents mend a file, at a verifier whose engine plays a script.

    python bench/agents.py --folder DIR [--only claude,codex] [--keep DIR]

Each agent is installed by pip or npm, as pinned in agents.toml, in a folder of its own under DIR,
which is outside the checkout. It then works by itself, in an empty home. The first answer fails, so
that it asks again (but for Claude Code). It reads a file, edits it with a text that is not there,
edits it again, and ends, as script.py has it. It passes if the file is mended and it ends well.
Prints a table; exit code 1 if an agent fails. --keep has a folder for all that the agents print,
and for the conversations.

No agent needs the internet: its proxy is a port that nothing listens on. Once they are installed,
this leaves them no network at all:

    unshare --user --map-root-user --net sh -c 'ip link set lo up; python bench/agents.py ...'
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from command_line import Options
from live import LOADING_S, free_port, running, until
from script import CODE, FILE, LLM_TOOLS, MENDED, filled

from specmesh.client import Client

sys.path.append(str(Path(__file__).with_name("clients")))

from packages import Package, placed

KEY = "sk-of-this-benchmark"
DEADLINE = 240.0  # seconds of an agent for its task
NOWHERE = "http://127.0.0.1:9"

OFFLINE = {
    "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "DO_NOT_TRACK": "1",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
}
"""The environment of every agent, beside its own variables, a home and a path."""

Texts = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A command-line agent, a table of agents.toml.

    packages: those of npm or PyPI that it consists of, with versions.
    words: its command.
    ends: the text that it prints at the end of its task.
    fails: its task begins with an error in a stream, after which it asks again.
    variables: its environment.
    files: their contents, by their paths in its home.
    """

    packages: list[str]
    words: list[str]
    ends: str
    npm: bool = False
    fails: bool = True
    variables: Texts = field(default_factory=Texts)
    files: Texts = field(default_factory=Texts)

    def installed(self, folder: Path) -> Path | None:
        """Return the path of its programs, installed if need be; None if that fails."""
        package = Package(" ".join(self.packages), self.npm)
        if placed(package, folder) is None:
            return None
        return folder / "node_modules" / ".bin" if self.npm else folder / "bin"


def agents() -> dict[str, Agent]:
    """Return all agents by their names."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    known: dict[str, Agent] = {}
    for name, table in tables.items():
        known[name] = Agent(**table)
    return known


@dataclass(frozen=True, slots=True)
class Run:
    """The end of an agent's run: its exit code, or None at the deadline; and all it printed."""

    code: int | None
    printed: str
    seconds: float


@contextmanager
def scripted(folder: Path, *, fails: bool) -> Iterator[str]:
    """Run a scripted verifier that wants a key, and yield the root of its API's addresses."""
    place = f"127.0.0.1:{free_port()}"
    socket = folder / "v.sock"
    keys = folder / "keys"
    keys.touch(0o600)
    keys.write_text(KEY, encoding="utf-8")
    conversations = folder / "conversations"
    conversations.mkdir()
    words = [sys.executable, str(Path(__file__).with_name("scripted.py")), "--conversations"]
    words.append(str(conversations))
    words += ["--model", "bundled", "--log-level", "warning", "--socket", str(socket)]
    words += ["--bind", f"tcp://127.0.0.1:{free_port()}", "--max-sessions", "4"]
    words += ["--http", place, "--api-key-file", str(keys)]
    if fails:
        words.append("--fails")
    with running(words, log=folder / "verifier.log"):
        client = Client(socket)
        until(lambda: client.get("/health")["status"] == "ok", LOADING_S)
        yield f"http://{place}"


def work(agent: Agent, programs: Path, root: str, home: Path) -> Run:
    """Have an agent do the task in a folder below its home."""
    folder = home / "work"
    task = f"The function in {folder / FILE} subtracts, but it should add. Mend it."
    values = {"task": task, "home": str(home), "root": root, "url": f"{root}/v1"}
    values |= {"key": KEY, "functions": LLM_TOOLS}
    for name, content in agent.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(content, values), encoding="utf-8")
    words: list[str] = []
    for word in agent.words:
        words.append(filled(word, values))
    variables = OFFLINE | {"HOME": str(home), "PWD": str(folder)}
    variables["PATH"] = f"{programs}:{os.environ['PATH']}"
    for name, value in agent.variables.items():
        variables[name] = filled(value, values)
    begun = time.monotonic()
    code, printed = ended(words, variables, folder)
    return Run(code, printed, time.monotonic() - begun)


def ended(words: list[str], variables: dict[str, str], folder: Path) -> tuple[int | None, str]:
    """Return the exit code of a command, None at the deadline, and all that it printed."""
    output = folder.parent / "printed.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    return code, output.read_text(encoding="utf-8", errors="replace")


def verdict(agent: Agent, run: Run, file: str) -> str:
    """Return "ok", or the reason why a run has failed."""
    end = " ".join(run.printed.split())[-300:]
    if run.code is None:
        return f"not done in {DEADLINE:.0f} s: {end}"
    if run.code:
        return f"exit code {run.code}: {end}"
    if file != MENDED:
        return f"the file is not mended: {end}"
    if agent.ends not in run.printed:
        return f"no end: {end}"
    return "ok"


def row(name: str, agent: Agent, folder: Path, keep: Path | None) -> list[str]:
    """Return the row of an agent, installed in `folder` if need be."""
    cells = [name, " ".join(agent.packages)]
    programs = agent.installed(folder)
    if programs is None:
        return [*cells, "", "", "not installed"]
    with tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp") as temporary:
        daemon = Path(temporary, "daemon")
        home = Path(temporary, "home")
        file = home / "work" / FILE
        daemon.mkdir()
        file.parent.mkdir(parents=True)
        file.write_text(CODE, encoding="utf-8")
        with scripted(daemon, fails=agent.fails) as root:
            run = work(agent, programs, root, home)
        content = file.read_text(encoding="utf-8")
        if keep is not None:
            kept = shutil.copytree(daemon / "conversations", keep / name)
            (kept / "printed").write_text(run.printed, encoding="utf-8")
    mended = "yes" if content == MENDED else "no"
    return [*cells, mended, f"{run.seconds:.0f}", verdict(agent, run, content)]


def main() -> None:
    """Run the agents one after the other, and print the table."""
    known = agents()
    parser = Options(__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="a folder for the agents' packages"
    )
    parser.option("--only", ",".join(known), "names, with commas")
    parser.add_argument("--keep", type=Path, help="a new folder for outputs and conversations")
    options = parser.parse_args()
    failed = False
    print("| agent | packages | file mended | seconds | |\n|---|---|---|---|---|")
    for name in options.only.split(","):
        cells = row(name, known[name], options.folder.resolve() / name, options.keep)
        print(f"| {' | '.join(cells)} |", flush=True)
        failed |= cells[-1] != "ok"
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
