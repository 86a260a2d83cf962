"""llama-server's options and paths over `specmesh verifier`, for llama.cpp's tests of its server.

    python bench/llama_shim.py --port 8080 --ctx-size 512 --parallel 2

Requests to other paths are passed on unchanged. bench/llama_server_tests.py runs the tests, and
bench/README.md has the results.
"""

import argparse
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from live import command, free_port

Body = dict[str, Any]

MODEL = Path(__file__).parents[1] / "specmesh" / "models" / "target.gguf"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OWN = {"n_predict", "n_probs", "return_tokens", "response_fields"}
"""Fields of /completion that are answered here."""
LACKING: Body = {"adaptive_target": -1.0, "adaptive_decay": 0.9}
"""A sampler that specmesh has not, at what turns it off."""
SAMPLING: Body = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama-server's defaults."""
UNVERSIONED = ("/completions", "/chat/completions", "/responses")
"""Paths that llama-server has without OpenAI's /v1, too."""
ENDS = {"length": "limit", "stop": "eos"}


def options() -> argparse.Namespace:
    """Return the options that a verifier has, too; others are accepted without effect."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--ctx-size", type=int, default=4096)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--n-predict", type=int, default=-1)
    parser.add_argument("--seed", type=int, default=-1)
    parser.add_argument("--temp", default="0.8")
    parser.add_argument("--alias", default="target")
    parser.add_argument("--chat-template", default=CHATML)
    parser.add_argument("--chat-template-file", default="")
    parser.add_argument("--reasoning", default="auto")
    parser.add_argument("--kv-unified", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    chosen, _ = parser.parse_known_args()
    if chosen.chat_template == "chatml":
        chosen.chat_template = CHATML
    return chosen


def verifier(chosen: argparse.Namespace, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a verifier with these options, its socket in `folder`."""
    model = folder / f"{chosen.alias}.gguf"
    model.symlink_to(MODEL)
    template = chosen.chat_template_file
    if not template:
        template = folder / "template.jinja"
        template.write_text(chosen.chat_template)
    ctx = chosen.ctx_size
    if not chosen.kv_unified:
        ctx //= chosen.parallel
    words = command(
        "verifier",
        threads=1,
        model=model,
        bind=f"tcp://127.0.0.1:{free_port()}",
        socket=folder / "s",
        chat_template=template,
        ctx=ctx,
        max_sessions=chosen.parallel,
    )
    environment = {"XDG_CONFIG_HOME": os.devnull}
    for name, value in os.environ.items():
        if not name.startswith("SPECMESH_"):
            environment.setdefault(name, value)
    return subprocess.Popen(words, env=environment)


class Refused(Exception):
    """The verifier's refusal: status and body."""


class Upstream(http.client.HTTPConnection):
    """A connection to the verifier's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        """Connect to the Unix socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.fspath(self.path))


class Handler(BaseHTTPRequestHandler):
    """A client's request."""

    chosen: argparse.Namespace
    verifier: Path

    def do_GET(self) -> None:
        """Pass the request on, /slots from /stats; 503 if the verifier does not listen yet."""
        try:
            if self.path != "/slots":
                return self.forward(None)
            stats = json.loads(self.ask("GET", "/stats").read())
            slots: list[Body] = []
            for slot in range(self.chosen.parallel):
                busy = slot < stats["sessions"]["live"]
                slots.append({"id": slot, "is_processing": busy})
            return self.answer(slots)
        except OSError:
            return self.answer({"error": {"message": "starting"}}, 503)

    def do_POST(self) -> None:
        """Answer llama-server's own paths, and pass on the others."""
        body: Body = SAMPLING | {
            "seed": self.chosen.seed,
            "temperature": float(self.chosen.temp),
            "chat_template_kwargs": {"enable_thinking": self.chosen.reasoning != "off"},
        }
        body |= json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.upstream = Upstream(self.verifier)
        try:
            match self.path:
                case "/completion":
                    self.completion(body)
                case "/chat/completions/input_tokens":
                    answer = self.read("/v1/chat/completions", body | {"max_tokens": 0})
                    self.answer({"input_tokens": answer["usage"]["prompt_tokens"]})
                case "/chat/completions" if body.pop("verbose", self.chosen.verbose):
                    answer = self.read("/v1/chat/completions", self.limit() | body)
                    prompt = self.read("/apply-template", body)
                    self.answer(spelled(answer) | {"__verbose": prompt})
                case _:
                    self.forward(self.limit() | body)
        except Refused as error:
            status, refusal = error.args
            self.answer(refusal, status)
        finally:
            self.upstream.close()

    def limit(self) -> dict[str, int]:
        """Return --n-predict as a field of /v1, if it was given."""
        if self.chosen.n_predict <= 0:
            return {}
        return {"max_tokens": self.chosen.n_predict}

    def ask(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        """Return the verifier's answer, of any status."""
        text: str | None = None
        if body is not None:
            text = json.dumps(body)
        self.upstream = Upstream(self.verifier)
        self.upstream.request(method, path, text)
        return self.upstream.getresponse()

    def asked(self, path: str, body: object) -> http.client.HTTPResponse:
        """Return its answer. Raise Refused for another status than 200."""
        answer = self.ask("POST", path, body)
        if answer.status != 200:
            raise Refused(answer.status, json.loads(answer.read()))
        return answer

    def read(self, path: str, body: object) -> Any:
        """Return its whole answer. Raise Refused for another status than 200."""
        return json.loads(self.asked(path, body).read())

    def forward(self, body: object) -> None:
        """Pass a request on, and its answer line by line, in llama-server's spelling."""
        path = self.path
        if path in UNVERSIONED:
            path = f"/v1{path}"
        answer = self.ask(self.command, path, body)
        self.send_response(answer.status)
        self.end_headers()
        for line in answer:
            begins, brace, rest = line.partition(b"{")
            if brace and begins in (b"", b"data: "):
                answered = json.dumps(spelled(json.loads(brace + rest)))
                self.wfile.write(begins + answered.encode() + b"\n")
            else:
                self.wfile.write(line)

    def answer(self, value: object, status: int = 200) -> None:
        """Answer with JSON."""
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def prompt(self, prompt: object) -> object:
        """Return a prompt for /v1: the text of an object, and ids instead of ids and texts."""
        match prompt:
            case {"prompt_string": text, **others} if not others:
                return text
            case list() if {int, str} <= set(map(type, prompt)):
                return self.read("/tokenize", {"content": prompt, "add_special": True})["tokens"]
            case list() if int not in map(type, prompt):
                return list(map(self.prompt, prompt))
        return prompt

    def completion(self, body: Body) -> None:
        """Answer llama-server's own completion from a stream of /v1, to notice a lost client."""
        wanted = body.get("n_predict", self.chosen.n_predict)
        stream = body.get("stream")
        prompt = body["prompt"]
        asked = body | {"prompt": self.prompt(prompt), "max_tokens": wanted, "stream": True}
        for name in OWN:
            asked.pop(name, None)
        if body.get("n_probs"):
            asked["logprobs"] = body["n_probs"]
        settings: Body = LACKING | {"n_predict": wanted, "seed": body["seed"]}
        by_prompt: dict[int, list[Body]] = defaultdict(list)
        answer = self.asked("/v1/completions", asked)
        if stream:
            self.send_response(200)
            self.end_headers()
        for event in native(chunks(answer), settings):
            if stream:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            elif self.is_lost():
                return
            by_prompt[event["index"]].append(event)
        if stream:
            return
        answers: list[Body] = []
        for _, events in sorted(by_prompt.items()):
            answers.append(whole(events, body))
        several = isinstance(prompt, list) and int not in map(type, prompt)
        self.answer(answers if several else answers[0])

    def is_lost(self) -> bool:
        """Return True if the client has closed its connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)


def spelled(answer: Body) -> Body:
    """Return an answer of /v1 in llama-server's spelling: it differs in three places."""
    error = answer.get("error") or {}
    if error.get("code") == "context_length_exceeded":
        n_ctx, n_prompt = map(int, re.findall(r"(\d+) tokens", error["message"]))
        error["type"] = "exceed_context_size_error"
        error |= {"n_ctx": n_ctx, "n_prompt_tokens": n_prompt}
    if "system_fingerprint" in answer:
        answer["system_fingerprint"] = f"b-{answer['system_fingerprint']}"
    for choice in answer.get("choices", []):
        if "role" in choice.get("delta", {}):
            choice["delta"]["content"] = None  # ours, as OpenAI's, is an empty text
    return answer


def chunks(response: http.client.HTTPResponse) -> Iterator[Any]:
    """Yield server-sent events until [DONE], or the connection's end."""
    for line in response:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return
        if data and data != line.strip():
            yield json.loads(data)


def native(chunks_of_v1: Iterator[Any], settings: Body) -> Iterator[Body]:
    """Yield chunks of /v1 as llama-server's: with probabilities one per token, and an end."""
    for chunk in chunks_of_v1:
        extra = chunk["specmesh"]
        ids = extra.get("token_ids", [])
        entries = extra.get("logprobs", [])
        for choice in chunk["choices"]:
            text = choice["text"]
            event: Body = {"index": choice["index"], "stop": False}
            for entry in entries:
                token = {"content": entry["token"], "tokens": [entry["id"]]}
                yield event | token | {"completion_probabilities": [entry]}
            if ids and not entries:
                yield event | {"content": text, "tokens": ids}
            if choice["finish_reason"] is not None:
                end = end_of(extra, choice["finish_reason"])
                if not ids:
                    end["content"] = text
                yield event | end | {"generation_settings": settings}


def end_of(extra: Body, reason: str) -> Body:
    """Return llama-server's last event from the last chunk's extension."""
    report = extra["report"]
    cached = report["cached_tokens"]
    times = {
        "prompt_n": len(extra["prompt_token_ids"]) - cached,
        "cache_n": cached,
        "predicted_n": report["generated_tokens"],
    }
    return {
        "stop": True,
        "stop_type": ENDS[reason],
        "truncated": False,
        "content": "",
        "tokens": [],
        "has_new_line": False,
        "timings": times,
    }


def whole(events: list[Body], body: Body) -> Body:
    """Return the events of one answer as one."""
    content = ""
    probabilities: list[Any] = []
    ids: list[int] = []
    for event in events:
        content += event["content"]
        probabilities += event.get("completion_probabilities", [])
        if body.get("return_tokens"):
            ids += event["tokens"]
    answer = events[-1] | {"completion_probabilities": probabilities}
    return answer | {"content": content, "tokens": ids, "has_new_line": "\n" in content}


def main() -> None:
    """Serve until SIGTERM."""
    Handler.chosen = options()
    with tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp") as folder:
        Handler.verifier = Path(folder) / "s"
        process = verifier(Handler.chosen, Path(folder))
        server = ThreadingHTTPServer(("127.0.0.1", Handler.chosen.port), Handler)
        signal.signal(signal.SIGTERM, lambda *_: process.kill())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        raise SystemExit(process.wait())


if __name__ == "__main__":
    main()
