"""Have real command-line agents mend a file, at a verifier whose engine plays a script.

    python bench/agents.py --folder DIR [--only claude,codex] [--keep DIR]

Each agent is installed by pip or npm, as pinned here, in a folder of its own under DIR, which is
outside the checkout. It then works by itself, in an empty home: the first answer fails, so that it
asks again; it reads a file, edits it with a text that is not there, edits it again, and ends, as
script.py has it. It passes if the file is mended and it ends well. Prints a table; exit code 1 if
an agent fails. --keep has a folder for all that the agents print, and for the conversations.

No agent needs the internet: its proxy is a port that nothing listens on. Once they are installed,
this leaves them no network at all:

    unshare --user --map-root-user --net sh -c 'ip link set lo up; python bench/agents.py ...'
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from command_line import Options
from live import LOADING_S, free_port, running, until
from script import CODE, DONE, FILE, LLM_TOOLS, MENDED, filled

from specmesh.client import Client

sys.path.append(str(Path(__file__).with_name("clients")))

from packages import Installed, Package, placed

KEY = "sk-of-this-benchmark"
MODEL = "scripted"
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

Files = dict[str, str]
"""By its path below an agent's home, the content of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A command-line agent.

    words: its command; {task} stands for the task, and {home}, {root} and {url} for the home, the
        daemon's address and that of its API, which ends with /v1, here and in all the rest.
    ends: what it prints at its end.
    """

    package: Package
    words: tuple[str, ...]
    variables: Mapping[str, str]
    files: Files = field(default_factory=Files)
    ends: str = DONE


CLAUDE = Agent(
    package=Package("@anthropic-ai/claude-code@2.1.332", npm=True),
    words=("claude", "-p", "{task}", "--permission-mode", "acceptEdits"),
    variables={
        "ANTHROPIC_BASE_URL": "{root}",
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    },
)

CODEX = Agent(
    package=Package("@openai/codex@0.171.0", npm=True),
    words=("codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "{task}"),
    variables={"CODEX_HOME": "{home}/.codex", "SPECMESH_API_KEY": KEY},
    files={
        ".codex/config.toml": f"""
model = "{MODEL}"
model_provider = "specmesh"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.specmesh]
name = "specmesh"
base_url = "{{url}}"
env_key = "SPECMESH_API_KEY"
wire_api = "responses"
"""
    },
)

OPENCODE_PROVIDER = {
    "npm": "@ai-sdk/openai-compatible",
    "name": "specmesh",
    "options": {"baseURL": "{url}", "apiKey": KEY},
    "models": {MODEL: {"name": MODEL, "limit": {"context": 131072, "output": 8192}}},
}
OPENCODE_SETTINGS = {
    "autoupdate": False,
    "share": "disabled",
    "provider": {"specmesh": OPENCODE_PROVIDER},
}
OPENCODE = Agent(
    package=Package("opencode-ai@1.18.33", npm=True),
    words=("opencode", "run", "--model", f"specmesh/{MODEL}", "{task}"),
    variables={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    },
    files={".config/opencode/opencode.json": json.dumps(OPENCODE_SETTINGS)},
)

QWEN_SETTINGS = {
    "security": {"auth": {"selectedType": "openai"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
}
QWEN = Agent(
    package=Package("@qwen-code/qwen-code@0.24.4 node@24.21.0", npm=True),
    words=("qwen", "-y", "-p", "{task}"),
    variables={"OPENAI_BASE_URL": "{url}", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL},
    files={".qwen/settings.json": json.dumps(QWEN_SETTINGS)},
)

AIDER = Agent(
    package=Package("aider-chat==0.86.2"),
    words=(
        *("aider", "--yes-always", "--no-git", "--no-pretty", "--edit-format", "diff"),
        *("--no-show-model-warnings", "--no-check-update", "--no-detect-urls", "--map-tokens=0"),
        *("--model", f"openai/{MODEL}", "--message", "{task}", FILE),
    ),
    variables={
        "OPENAI_API_BASE": "{url}",
        "OPENAI_API_KEY": KEY,
        "AIDER_ANALYTICS_DISABLE": "true",
        "AIDER_SHOW_RELEASE_NOTES": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    ends=f"Applied edit to {FILE}",
)

LLM_MODEL = {
    "model_id": MODEL,
    "model_name": MODEL,
    "api_base": "{url}",
    "api_key_name": "specmesh",
    "supports_tools": True,
}
LLM = Agent(
    package=Package("llm==0.36"),
    words=("llm", "-m", MODEL, "--no-stream", "--functions", LLM_TOOLS, "{task}"),
    variables={"LLM_USER_PATH": "{home}"},
    files={
        "extra-openai-models.yaml": json.dumps([LLM_MODEL]),  # JSON is YAML
        "keys.json": json.dumps({"specmesh": KEY}),
    },
)

AGENTS = {
    "claude": CLAUDE,
    "codex": CODEX,
    "opencode": OPENCODE,
    "qwen": QWEN,
    "aider": AIDER,
    "llm": LLM,
}


@dataclass(frozen=True, slots=True)
class Run:
    """The end of an agent's run: its exit code, or None at the deadline; and all it printed."""

    code: int | None
    printed: str
    seconds: float


@contextmanager
def scripted(folder: Path) -> Iterator[str]:
    """Run a scripted verifier that wants a key, and yield the root of its API's addresses."""
    place = f"127.0.0.1:{free_port()}"
    socket = folder / "v.sock"
    keys = folder / "keys"
    keys.touch(0o600)
    keys.write_text(KEY, encoding="utf-8")
    words = [sys.executable, str(Path(__file__).with_name("scripted.py")), "verifier"]
    words += ["--model", "bundled", "--log-level", "warning", "--socket", str(socket)]
    words += ["--bind", f"tcp://127.0.0.1:{free_port()}", "--max-sessions", "4"]
    words += ["--http", place, "--api-key-file", str(keys)]
    os.environ["SCRIPT_FOLDER"] = str(folder)
    with running(words, log=folder / "verifier.log"):
        client = Client(socket)
        until(lambda: client.get("/health")["status"] == "ok", LOADING_S)
        yield f"http://{place}"


def work(agent: Agent, installed: Installed, root: str, home: Path) -> Run:
    """Have an agent do the task in a folder below its home."""
    folder = home / "work"
    file = folder / FILE
    task = f"The function in {file} subtracts, but it should add. Mend it."
    values = {"task": task, "home": str(home), "root": root, "url": f"{root}/v1"}
    for name, content in agent.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(content, values), encoding="utf-8")
    words: list[str] = []
    for word in agent.words:
        words.append(filled(word, values))
    programs = f"{installed.folder}/node_modules/.bin:{installed.folder}/bin"
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


def row(name: str, folder: Path, keep: Path | None) -> list[str]:
    """Return the row of an agent, installed if need be."""
    agent = AGENTS[name]
    installed = placed(agent.package, folder / name)
    if installed is None:
        return [name, agent.package.wanted, "", "", "not installed"]
    with tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp") as temporary:
        daemon = Path(temporary, "daemon")
        home = Path(temporary, "home")
        file = home / "work" / FILE
        daemon.mkdir()
        file.parent.mkdir(parents=True)
        file.write_text(CODE, encoding="utf-8")
        with scripted(daemon) as root:
            run = work(agent, installed, root, home)
        content = file.read_text(encoding="utf-8")
        if keep is not None:
            kept = keep.resolve() / name
            shutil.copytree(daemon, kept, ignore=shutil.ignore_patterns("*.sock*", "keys"))
            (kept / "printed.txt").write_text(run.printed, encoding="utf-8")
    mended = "yes" if content == MENDED else "no"
    seconds = f"{run.seconds:.0f}"
    return [name, agent.package.wanted, mended, seconds, verdict(agent, run, content)]


def main() -> None:
    """Run the agents one after the other, and print the table."""
    parser = Options(__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="a folder for the agents' packages"
    )
    parser.option("--only", ",".join(AGENTS), "names, with commas")
    parser.add_argument("--keep", type=Path, help="a new folder for outputs and conversations")
    options = parser.parse_args()
    failed = False
    print("| agent | packages | file mended | seconds | |\n|---|---|---|---|---|")
    for name in options.only.split(","):
        cells = row(name, options.folder.resolve(), options.keep)
        print(f"| {' | '.join(cells)} |", flush=True)
        failed |= cells[-1] != "ok"
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
