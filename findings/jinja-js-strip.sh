#!/usr/bin/env bash
# Package:  @huggingface/jinja 0.5.11 (npm) beside jinja2 3.1.6 (Python)
# Expected: a chat template gives the same prompt in transformers.js as in transformers.
# Seen:     strip, lstrip and rstrip ignore their argument and take all white space, so
#           lstrip('\n'), by which templates of thinking models cut a thought off, takes the
#           indentation of the answer's first line too. A negative number modulo another is
#           negative, and a list or dict is printed as JSON. No error.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q jinja2==3.1.6
cd "$home"
npm install --silent --no-audit --no-fund --prefix . @huggingface/jinja@0.5.11
cat > templates.json <<'JSON'
["{{ text.lstrip('\\n') }}", "{{ text.rstrip('\\n') }}", "{{ 'xxaxx'.strip('x') }}",
 "{{ (0 - 1) % 3 }}", "{{ [1, 'a', true] }}", "{{ {'a': none} }}", "{{ text | trim }}"]
JSON
cat > render.py <<'PY'
import json
from importlib.metadata import version

from jinja2.sandbox import ImmutableSandboxedEnvironment

environment = ImmutableSandboxedEnvironment()
text = "\n    indented\n  \n"
templates = json.load(open("templates.json"))
rendered = [environment.from_string(template).render(text=text) for template in templates]
json.dump(rendered, open("python.json", "w"))
print("jinja2", version("jinja2"))
PY
cat > render.mjs <<'JS'
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";

const read = (name) => JSON.parse(readFileSync(name, "utf8"));
const python = read("python.json");
const installed = read("node_modules/@huggingface/jinja/package.json");
console.log(installed.name, installed.version);
const differ = read("templates.json").map((template, index) => {
  const rendered = new Template(template).render({ text: "\n    indented\n  \n" });
  console.log(`${template}\n    Python ${JSON.stringify(python[index])}`);
  console.log(`    npm    ${JSON.stringify(rendered)}`);
  return rendered !== python[index];
});
process.exit(differ.join() === "true,true,true,true,true,true,false" ? 0 : 1);
JS
venv/bin/python render.py
node render.mjs
