#!/usr/bin/env bash
# Package:  mcp 2.3.0 (Python SDK, MCPServer)
# Expected: a tool parameter of type `str | None` gets the text that the model wrote, as one of type
#           `str` does.
# Seen:     the text is first tried as JSON. The text null arrives as None, without an error; a text
#           that is a JSON object or list, such as the content of a file to write, is refused:
#           "Input should be a valid string".
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q mcp==2.3.0
cd "$home"
venv/bin/python - <<'PY'
import asyncio
from importlib.metadata import version

from mcp.server import MCPServer

server = MCPServer("finding")


@server.tool()
def plain(text: str) -> str:
    return repr(text)


@server.tool()
def optional(text: str | None = None) -> str:
    return repr(text)


async def answer(tool, text):
    """Return what the tool was given, or the error."""
    try:
        result = await server.call_tool(tool, {"text": text})
    except Exception as error:
        return "refused" if "valid string" in str(error) else repr(error)
    return result.structured_content["result"]


print("mcp", version("mcp"))
seen = {}
for text in ("null", '{"a": 1}', "[1]", "hello", "5"):
    seen[text] = tuple(asyncio.run(answer(tool, text)) for tool in ("plain", "optional"))
    print(f"{text!r}: str gets {seen[text][0]}, str | None gets {seen[text][1]}")
as_described = seen["null"] == ("'null'", "None")
as_described &= seen['{"a": 1}'][1] == seen["[1]"][1] == "refused"
as_described &= seen["hello"][1] == "'hello'" and seen["5"][1] == "'5'"
raise SystemExit(0 if as_described else 1)
PY
