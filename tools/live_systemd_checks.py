"""Check the units under a real systemd. live_systemd.sh starts it in a container."""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

PATIENCE = 30.0
EXAMPLES = Path(__file__).parent / "systemd/examples"
UNIT = "specmesh-verifier"
SETTINGS = Path("/etc/specmesh/verifier.toml")
DROP_IN = Path(f"/etc/systemd/system/{UNIT}.service.d/live.conf")
BUNDLED = 'model = "bundled"\nthreads = 1\n'

Done = subprocess.CompletedProcess[str]
failures: list[str] = []


def check(claim: str, held: bool, found: object = "") -> None:
    """Print the result of a check, and note a failure."""
    verdict = "ok  " if held else "FAIL"
    details = "" if found == "" else f": {found}"
    print(f"{verdict} {claim}{details}", flush=True)
    if not held:
        failures.append(claim)


def run(command: str, *words: str, user: str = "root") -> Done:
    """Run a command as this user: words between blanks, and more words."""
    home = pwd.getpwnam(user)
    env = {"PATH": os.environ["PATH"], "HOME": home.pw_dir, "USER": user, "LANG": "C.UTF-8"}
    parts = [*command.split(), *words]
    if user != "root":
        parts[:0] = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        runtime = f"/run/user/{home.pw_uid}"
        if Path(runtime).is_dir():
            env["XDG_RUNTIME_DIR"] = runtime
    return subprocess.run(parts, capture_output=True, text=True, env=env, check=False, cwd="/")


def service(command: str, role: str = "verifier") -> Done:
    """Run `specmesh service` for the machine's own service."""
    return run(f"specmesh service {command} {role} --system")


def generate(*options: str, user: str = "root") -> Done:
    """Generate a short text at the running daemon."""
    return run("specmesh generate --max-tokens 8", *options, "def f(n):", user=user)


def shown(key: str, unit: str = UNIT) -> str:
    """Return a property of a unit."""
    return run(f"systemctl show {unit} --property {key} --value").stdout.strip()


def state(unit: str = UNIT) -> str:
    """Return the state of a unit: result, exit code and number of restarts."""
    keys = ("ActiveState", "Result", "ExecMainStatus", "NRestarts")
    return " ".join(shown(key, unit) for key in keys)


def status() -> str:
    """Return the status line of the verifier's unit."""
    return shown("StatusText")


def active(unit: str = UNIT) -> bool:
    """Return True if a unit is active."""
    return shown("ActiveState", unit) == "active"


def send(number: int) -> str:
    """Signal the daemon; return its pid."""
    pid = shown("MainPID")
    os.kill(int(pid), number)
    return pid


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Return True once a condition holds; False if it does not in time."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


def restarted(former: str) -> bool:
    """Return True once another process is ready."""
    return until(lambda: active() and shown("MainPID") not in ("0", former))


def drop_in(text: str) -> None:
    """Put this over the unit; an empty text takes it away."""
    DROP_IN.parent.mkdir(exist_ok=True)
    DROP_IN.write_text(text)
    run("systemctl", "daemon-reload")


def wrong_settings() -> None:
    """Check that exit code 78 ends the service."""
    done = service("start")
    check("without a model: not started", done.returncode == 1, state())
    time.sleep(3)  # longer than RestartSec
    check("wrong settings are not tried again", state() == "failed exit-code 78 0", state())
    SETTINGS.write_text('model = "/home/ada/model.gguf"\n')
    service("start")
    check("nor is a model in a home", state() == "failed exit-code 78 0", state())


def readiness() -> None:
    """Check that a unit is active once a text can be generated, however long that takes."""
    SETTINGS.write_text(BUNDLED)
    done = service("start")
    first = generate()
    errors = done.stderr + first.stderr
    check("started means that it generates", not done.returncode and not first.returncode, errors)
    check("its status names the model", status().startswith("target at tcp://"), status())
    service("stop")
    SETTINGS.write_text('engine = "sim"\nmodel = "load_s=8"\n')
    drop_in("[Service]\nTimeoutStartSec=4\n")
    run("systemctl", "start", "--no-block", UNIT)
    loading = until(lambda: status() == "loading 0%")
    check("loading is shown", loading, status())
    check("and is not yet started", shown("ActiveState") == "activating")
    check("loading takes longer than TimeoutStartSec", until(active), state())
    drop_in("")
    SETTINGS.write_text(BUNDLED)
    service("restart")


def confinement() -> None:
    """Check the files and privileges of the daemon."""
    pid = shown("MainPID")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    lines_of = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    bounding = int(lines_of["CapBnd"], 16)
    effective = int(lines_of["CapEff"], 16)
    check("no capability", bounding == effective == 0)
    filtered = (lines_of["NoNewPrivs"], lines_of["Seccomp"]) == ("1", "2")
    check("no new privileges, and a filter", filtered)
    script = "ls /home /root; touch /etc/x /usr/x /srv/x"
    inside = run(f"nsenter --target {pid} --mount sh -c", script)
    hidden = inside.stdout.split() == ["/home:", "/root:"]
    check("homes are hidden, and little can be written", hidden)
    refused = inside.stderr.count("Read-only file system")
    check("neither /etc nor /usr nor /srv", refused == 3)


def users() -> None:
    """Check that only root and the members of the group reach the socket."""
    run("useradd", "--create-home", "--groups", "specmesh", "member")
    run("useradd", "--create-home", "other")
    for user in ("root", "member"):
        check(f"{user} generates", generate(user=user).returncode == 0)
        stats = run("specmesh", "stats", user=user).stdout
        check(f"{user} sees statistics", "role           verifier" in stats)
        doctor = run("specmesh", "doctor", user=user)
        verdict = doctor.stdout.splitlines()[-1]
        check(f"the doctor finds no fault as {user}", doctor.returncode == 0, verdict)
    done = generate(user="other")
    refused = done.returncode == 69 and "this user may not use" in done.stderr
    reason = done.stderr.rpartition("; ")[2].strip()
    check("another user may not", refused, reason)
    found = run("specmesh", "doctor", user="other").stdout
    check("and the doctor has the reason", "is closed to this user" in found)


def failing() -> None:
    """Check the daemons that are started again, and those that are not."""
    former = send(signal.SIGKILL)
    check("killed: started again", restarted(former) and generate().returncode == 0, state())
    drop_in("[Service]\nWatchdogSec=4\n")
    service("restart")
    former = send(signal.SIGSTOP)
    check("stuck: killed by the watchdog", until(lambda: shown("Result") == "watchdog"), state())
    check("and started again", restarted(former) and generate().returncode == 0, state())
    former = shown("MainPID")
    time.sleep(10)
    check("a daemon that goes on is not touched", shown("MainPID") == former)
    drop_in("")
    codes = [service("restart").returncode for _ in range(7)]
    check("seven restarts by hand", not any(codes), codes)
    drop_in("[Service]\nExecStartPre=/bin/false\n")
    service("restart")
    tries = until(lambda: int(shown("NRestarts")) > 6, 2 * PATIENCE)
    check("a failing daemon is tried more often than five times", tries, state())
    drop_in("")
    check("and comes by itself", until(active), state())


LATER = 20.0  # seconds after the start until the missing thing comes


def waiting() -> None:
    """Check that a daemon serves by itself once an address, or a disk, comes LATER."""
    disk = Path("/srv/disk")
    ours = Path("/srv/ours")
    disk.mkdir()
    ours.mkdir()
    model = next(Path("/opt/specmesh").rglob("specmesh/models/target.gguf"))
    shutil.copy(model, ours)
    address = "100.64.0.9"
    missing = {
        "an address": (
            f'{BUNDLED}bind = "tcp://{address}:7071"\ninsecure-no-auth = true\n',
            ("ip", "address", "add", f"{address}/32", "dev", "lo"),
        ),
        "a disk": (
            f'model = "{disk}/target.gguf"\nthreads = 1\n',
            ("mount", "--bind", str(ours), str(disk)),
        ),
    }
    drop_in("[Service]\nTimeoutStartSec=5\n")
    for thing, (settings, comes) in missing.items():
        SETTINGS.write_text(settings)
        service("stop")
        run("systemctl", "start", "--no-block", UNIT)
        waits = until(lambda: status().startswith("waiting: "))
        check(f"{thing} that is missing is waited for", waits, status())
        daemons = run("specmesh", "ps").stdout
        check("and shown", "waiting" in daemons, daemons.splitlines()[-1])
        time.sleep(LATER)
        check("for longer than TimeoutStartSec", shown("ActiveState") == "activating", state())
        began = time.monotonic()
        run(*comes)
        serves = until(active)
        took = time.monotonic() - began
        check(f"{thing} comes, and it serves", serves, f"{took:.1f} s, {state()}")
        check("without a restart", shown("NRestarts") == "0" and generate().returncode == 0)
    service("stop")
    run(f"ip address delete {address}/32 dev lo")
    SETTINGS.write_text(missing["an address"][0])
    run("systemctl", "start", "--no-block", UNIT)
    until(lambda: status().startswith("waiting: "))
    began = time.monotonic()
    done = service("stop")
    took = time.monotonic() - began
    stopped = done.returncode == 0 and took < 2
    check("a wait is stopped at once", stopped, f"{took:.1f} s, {state()}")
    began = time.monotonic()
    by_hand = run("specmesh verifier --model bundled --bind tcp://100.64.0.99:7071")
    took = time.monotonic() - began
    check("by hand 78 in a second", by_hand.returncode == 78 and took < 1, f"{took:.1f} s")
    wrong = run("specmesh", "verifier", "--model", f"{disk}/targt.gguf")
    check("a typing error, too", wrong.returncode == 78, wrong.stderr.strip())
    SETTINGS.write_text(f'model = "{disk}/targt.gguf"\n')
    service("start")
    check("and it ends the service", state().startswith("failed exit-code 78"), state())
    drop_in("")
    SETTINGS.write_text(BUNDLED)
    service("start")


def draining() -> None:
    """Check that a stop lets texts end."""
    words = ["specmesh", "generate", "def f(n):", "--max-tokens", "600", "--json"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/")
    until(lambda: '"live": 1' in run("specmesh", "stats", "--json").stdout)
    done = service("stop")
    out, _ = running.communicate(timeout=PATIENCE)
    tokens = json.loads(out)["generated_tokens"]
    check("stop lets a text end", running.returncode == 0 and tokens == 600)
    inactive = done.returncode == 0 and state().startswith("inactive success")
    check("and leaves it inactive", inactive, state())
    check("its socket has gone", not Path("/run/specmesh/verifier.sock").exists())


def examples() -> None:
    """Check the drop-ins."""
    keys = Path("/etc/specmesh/api-keys")
    keys.write_text("a-key-of-the-live-test-0\n")
    keys.chmod(0o600)
    drop_in((EXAMPLES / "http.conf").read_text())
    check("http.conf", service("restart").returncode == 0, state())
    answers = [asked(key) for key in (None, "wrong", "a-key-of-the-live-test-0")]
    check("only the credential's key opens the port", answers == [401, 401, 200], answers)
    keys.unlink()
    drop_in((EXAMPLES / "memory-deny-write-execute.conf").read_text())
    check("memory-deny-write-execute.conf", restarts(), state())
    drop_in((EXAMPLES / "lan.conf").read_text())
    check("lan.conf", restarts(), state())
    drop_in("")


def restarts() -> bool:
    """Restart the verifier; return True if it generates."""
    return service("restart").returncode == 0 and generate().returncode == 0


def asked(key: str | None) -> int:
    """Return the status of the port's answer to a key."""
    headers = dict[str, str]()
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request("http://127.0.0.1:8080/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def addresses() -> None:
    """Check that a tailnet's address can be reached, and one of the internet cannot."""
    for address, reached in (("100.64.0.7", True), ("203.0.113.5", False)):
        run(f"ip address add {address}/32 dev lo")
        SETTINGS.write_text(f'{BUNDLED}bind = "tcp://{address}:7071"\ninsecure-no-auth = true\n')
        service("restart")
        try:
            socket.create_connection((address, 7071), 3.0).close()
            found = True
        except TimeoutError:
            found = False
        verdict = "reached" if reached else "not reached"
        check(f"{address} is {verdict}", found is reached, state())
    SETTINGS.write_text(BUNDLED)
    service("restart")


def drafter() -> None:
    """Check the other daemon, its own socket, and a start of the machine."""
    Path("/etc/specmesh/drafter.toml").write_text(BUNDLED)
    started = service("start", "drafter").returncode == 0
    check("a drafter starts", started, shown("StatusText", "specmesh-drafter"))
    check("and drafts", until(drafted))
    asked = generate("--socket", "/run/specmesh/drafter.sock", user="member")
    check("and is asked itself", asked.returncode == 0, asked.stderr)
    for role in ("verifier", "drafter"):
        service("stop", role)
    run("systemctl", "start", "multi-user.target")
    both = until(lambda: active() and active("specmesh-drafter"))
    check("both start with the machine", both)


def drafted(user: str = "root") -> bool:
    """Return True if a text has been drafted for."""
    done = generate("--draft-n", "4", "--json", user=user)
    return done.returncode == 0 and bool(json.loads(done.stdout)["drafted"])


def user_units() -> None:
    """Check the units of one user, under a systemd of that user's."""
    service("stop")  # it has the port
    number = pwd.getpwnam("other").pw_uid
    started = run("systemctl", "start", f"user@{number}.service")
    check("a user's systemd", started.returncode == 0, started.stderr)
    service("stop", "drafter")
    # Then the journal is kept by user, as on most machines, and each user may read their own.
    run("journalctl", "--flush")
    document = (Path(__file__).parent / "operations.md").read_text(encoding="utf-8")
    recipe = document.partition("## Services")[2].partition("```sh\n")[2].partition("```")[0]
    done = run("sh", "-ec", recipe, user="other")
    claim = "the recipe of docs/operations.md, word for word, as a user"
    check(claim, done.returncode == 0, done.stderr)
    check("and the pair drafts", until(lambda: drafted(user="other")))
    for role in ("verifier", "drafter"):
        run("specmesh", "service", "uninstall", role, user="other")
    left = [path for path in Path("/home/other/.config").rglob("*") if not path.is_dir()]
    check("is uninstalled", not left, left)


def uninstalled() -> None:
    """Check that nothing is left of a service, also if its daemon has just failed."""
    service("start")
    send(signal.SIGKILL)
    for role in ("verifier", "drafter"):
        service("uninstall", role)
    files = [*Path("/etc/systemd/system").rglob("specmesh-*.service")]
    files += Path("/etc/specmesh").glob("*.toml")
    check("no file is left", not [path for path in files if path.exists()], files)
    known = run("systemctl list-units --all --plain --no-legend specmesh-*").stdout
    check("and systemd knows nothing of it", not known, known.strip())


def main() -> None:
    """Run the parts in turn: each leaves the verifier installed, with good settings."""
    first_process = Path("/proc/1/comm").read_text().strip()
    environment = Path("/proc/1/environ").read_text().split("\0")
    if first_process != "systemd" or "container=docker" not in environment:
        sys.exit("run tools/live_systemd.sh, which starts this")
    print(run("systemctl", "--version").stdout.splitlines()[0])
    for role in ("verifier", "drafter"):
        done = service("install", role)
        check(f"install {role}", done.returncode == 0, done.stderr)
    for part in (
        wrong_settings, readiness, confinement, users, failing, waiting, draining, examples,
        addresses, drafter,
        user_units, uninstalled,
    ):  # fmt: skip
        part()
    if failures:
        sys.exit(f"{len(failures)} did not hold: {'; '.join(failures)}")


main()
