"""Collect the tools of published MCP servers: `make tools`.

Each server is installed from npm, without its scripts, started over stdio in an empty home and
without a network, asked for its list of tools, and ended. The list goes to `tools/SERVER.json` of
the test cache, as {"package", "version", "tools"}. A server that fails is named. Exits with 1 where
fewer than LEAST_SERVERS or LEAST_TOOLS are left. `bench/mcp_tools.py` reads the lists.

    python tools/collect_tools.py [NAME ...]
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import tempfile
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any

from mcp_servers import Server, servers
from test_cache import cache_folder, write_json

LEAST_SERVERS = 15
LEAST_TOOLS = 300
INSTALLING_S = 600.0
ASKING_S = 60.0  # seconds from a server's start to its whole list
ENDING_S = 3.0  # seconds that a server has after its standard input ended
LONGEST_LINE = 2**26  # bytes

PROTOCOL = "2025-06-18"
"""The revision of the Model Context Protocol that is asked for."""

ALONE = ("unshare", "--user", "--map-root-user", "--net")
"""Starts a command without a network."""
LOOPBACK = ("sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh")


class ServerFailed(Exception):
    """A server could not be installed, or has not answered."""


def installed(server: Server) -> Path:
    """Return the folder that has the server's package. Raise ServerFailed."""
    folder = cache_folder("servers", f"{server.name}-{server.version}")
    done = folder / "installed"
    if done.exists():
        return folder
    wanted = server.spec
    command = ["npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-save", wanted]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=INSTALLING_S, check=False)
    except subprocess.TimeoutExpired:
        raise ServerFailed(f"npm took more than {INSTALLING_S:.0f} s") from None
    if ended.returncode != 0:
        raise ServerFailed(f"npm: {last_words(ended.stderr)}")
    done.touch()
    return folder


def executable(server: Server, folder: Path) -> Path:
    """Return the server's command, as npm has linked it."""
    package = folder / "node_modules" / server.package / "package.json"
    commands = json.loads(package.read_text(encoding="utf-8")).get("bin", {})
    own = server.package.rpartition("/")[2]
    name = server.command or own
    if isinstance(commands, dict) and name not in commands:
        name = next(iter(commands), name)
    return folder / "node_modules" / ".bin" / name


def last_words(output: bytes) -> str:
    """Return the end of an output on one line."""
    return " ".join(output.decode("utf-8", "replace").split())[-200:]


class Connection:
    """JSON-RPC with a server, a message on each line."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to = process.stdin
        self._from = process.stdout
        self._asked = 0

    async def ask(self, method: str, parameters: dict[str, object]) -> dict[str, Any]:
        """Return the result of a request.

        Raise ServerFailed for an error, or if the server ends.
        """
        self._asked += 1
        self.send({"id": self._asked, "method": method, "params": parameters})
        while line := await self._from.readline():
            message = _object(line)
            if "method" in message and "id" in message:
                self._refuse(message)
            elif message.get("id") == self._asked:
                if "result" not in message:
                    raise ServerFailed(f"{method}: {message.get('error')}")
                return dict(message["result"])
        raise ServerFailed(f"it ended before it answered {method}")

    def send(self, message: dict[str, object]) -> None:
        """Send a message; a notification has no id."""
        self._to.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")

    def _refuse(self, request: dict[str, Any]) -> None:
        """Answer a request of the server's: this client has nothing to offer."""
        error = {"code": -32601, "message": "not supported"}
        self.send({"id": request["id"], "error": error})


def _object(line: bytes) -> dict[str, Any]:
    """Return a message; an empty one for a line that is none."""
    with suppress(ValueError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    return {}


async def listed(connection: Connection) -> list[dict[str, Any]]:
    """Return all tools of a server, page by page."""
    hello: dict[str, object] = {
        "protocolVersion": PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "specmesh-tests", "version": "1"},
    }
    await connection.ask("initialize", hello)
    connection.send({"method": "notifications/initialized"})
    tools = list[dict[str, Any]]()
    page = dict[str, object]()
    while True:
        answer = await connection.ask("tools/list", page)
        tools += answer["tools"]
        cursor = answer.get("nextCursor")
        if not cursor:
            return tools
        page = {"cursor": cursor}


async def tools_of(server: Server, folder: Path, home: str, apart: bool) -> list[dict[str, Any]]:
    """Start a server, return its tools, and end it. Raise ServerFailed."""
    command = [str(executable(server, folder))]
    for word in server.arguments:
        command.append(home if word == "HOME" else word)
    if apart:
        command = [*ALONE, *LOOPBACK, *command]
    environment = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "CI": "1"}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home,
        env=environment | dict(server.environment),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=LONGEST_LINE,
        start_new_session=True,
    )
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    try:
        async with asyncio.timeout(ASKING_S):
            return await listed(Connection(process))
    except TimeoutError:
        raise ServerFailed(f"no list of tools within {ASKING_S:.0f} s") from None
    except (ServerFailed, OSError) as error:
        await ended(process)
        raise ServerFailed(f"{error}: {last_words(await errors)}") from None
    finally:
        await ended(process)
        await errors


async def ended(process: Process) -> None:
    """End a server and its children, which have a process group of their own."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), ENDING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def has_no_network() -> bool:
    """Return True if commands can be kept from the network."""
    with suppress(OSError):
        return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0
    return False


def collect(server: Server, apart: bool) -> int:
    """Write a server's list into the cache; return its number of tools. Raise ServerFailed."""
    folder = installed(server)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        tools = asyncio.run(tools_of(server, folder, home, apart))
    if not tools:
        raise ServerFailed("it has no tools")
    found = {"package": server.package, "version": server.version, "tools": tools}
    write_json(cache_folder("tools") / f"{server.name}.json", found)
    return len(tools)


def main() -> None:
    """Collect the lists of all servers, or of those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="packages; all if none is given")
    names = parser.parse_args().names
    apart = has_no_network()
    if not apart:
        print("no network namespaces here: the servers could reach the network")
    counts = list[int]()
    wanted = [server for server in servers() if not names or server.package in names]
    for server in wanted:
        try:
            counts.append(collect(server, apart))
            print(f"{server.package:<52}{server.version:<12}{counts[-1]:>4} tools", flush=True)
        except ServerFailed as error:
            (cache_folder("tools") / f"{server.name}.json").unlink(missing_ok=True)
            print(f"{server.package:<52}{server.version:<12}failed: {error}", flush=True)
    print(f"{len(counts)} of {len(wanted)} servers, {sum(counts)} tools")
    if not names and (len(counts) < LEAST_SERVERS or sum(counts) < LEAST_TOOLS):
        raise SystemExit(f"at least {LEAST_SERVERS} and {LEAST_TOOLS} were expected")


if __name__ == "__main__":
    main()
