#!/usr/bin/env bash
# Package:  prometheus-client 0.26.0 (choose_encoder, which make_wsgi_app and make_asgi_app use)
# Expected: a scraper whose Accept header gives OpenMetrics the quality 0 does not get it: by RFC
#           9110 q=0 means not acceptable. And text/plain;q=0.9 wins over OpenMetrics with q=0.1.
# Seen:     qualities are not read: whoever names OpenMetrics gets it. Its counters, # EOF line and
#           created series are not the text format that was asked for.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q prometheus-client==0.26.0
cd "$home"
venv/bin/python - <<'PY'
from importlib.metadata import version

from prometheus_client.exposition import choose_encoder

print("prometheus-client", version("prometheus-client"))
headers = [
    "text/plain;version=0.0.4",
    "application/openmetrics-text;q=0, text/plain",
    "application/openmetrics-text;version=1.0.0;q=0.1, text/plain;version=0.0.4;q=0.9",
]
chosen = []
for header in headers:
    _, content_type = choose_encoder(header)
    chosen.append(content_type.split(";")[0])
    print(f"Accept: {header}\n    {content_type}")
openmetrics = "application/openmetrics-text"
raise SystemExit(0 if chosen == ["text/plain", openmetrics, openmetrics] else 1)
PY
