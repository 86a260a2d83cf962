"""Run llama.cpp's own tests of its server with specmesh, through bench/llama_shim.py.

    python bench/llama_server_tests.py TESTS --python VENV/bin/python

TESTS is vendor/llama.cpp/tools/server/tests of llama-cpp-python's sources; VENV has pytest,
requests, openai, wget and filelock. The tests' model comes from a hub, and the bundled target
takes its place: its texts and numbers of tokens differ, and are compared with `--literally` only.
Prints a table with the reason of each failure; exit code 1 for an unexpected one.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from command_line import Options

FILES = (
    "unit/test_completion.py",
    "unit/test_chat_completion.py",
    "unit/test_compat_oai_responses.py",
    "unit/test_tokenize.py",
    "unit/test_template.py",
    "unit/test_tool_call.py",
)
COMPARED = (
    "test_completion_with_response_format",
    "test_completion_with_json_schema",
    "test_completion_with_grammar",
)
"""Tests whose texts a grammar made, so that every model writes them."""
SLOW = ("test_completion_without_tool_call_slow",)
"""Tests marked as slow that take the same small model."""
SHIM = "a form of /completion, the shim's own"
NUMBERS = "numbers of tokens of their model, written into the test"
NAMED_TEMPLATE = "a template of llama.cpp's own by its name: `--chat-template` takes a file"
JOINED = "text parts are joined as they are, without an empty line"
TIMES = "`timings_per_token`: times are in `specmesh.report`"
EXPECTED = {
    "test_completion_response_fields[I believe the meaning of life is-32": SHIM,
    "test_n_probs_post": "`post_sampling_probs`: probabilities are told before samplers only",
    "test_logit_bias[False": "`logit_bias` by text: ids only, as OpenAI's; refused by name",
    "test_completion_prompt_cache[": NUMBERS,
    "test_chat_completion_cached_tokens[": NUMBERS,
    "test_chat_template[": NAMED_TEMPLATE,
    "test_apply_chat_template[": NAMED_TEMPLATE,
    "test_chat_template_assistant_prefill[prefill1": JOINED,
    "test_chat_completion_with_timings_per_token[": TIMES,
    "test_return_progress[": "`return_progress`: not after each batch, as that is too often",
    "test_responses_stream_with_llama_telemetry[": TIMES,
    "test_tokenize_with_bos[": "their model's id: the bundled target begins texts with no token",
    "test_date_inside_prompt[fireworks": "its template needs `functions`: refused",
}
"""Reasons of expected failures, by the beginning of a test's name and bracket."""

_results: dict[str, tuple[str, str]] = {}


class _Number(int):
    """Equal to every number."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    __hash__ = int.__hash__


def pytest_configure() -> None:
    """Load no presets, compare no texts. The tests take this module as a plugin."""
    # The module is llama.cpp's, in the folder of its tests.
    import utils  # type: ignore[import-not-found]  # noqa: PLC0415

    utils.ServerPreset.load_all = staticmethod(lambda: None)
    if "LITERALLY" not in os.environ:
        compared = utils.match_regex
        utils.match_regex = lambda regex, text: not _is_compared() or compared(regex, text)


def _is_compared() -> bool:
    _, _, name = os.environ["PYTEST_CURRENT_TEST"].partition("::")
    return name.partition("[")[0] in COMPARED


def pytest_collection_modifyitems(items: list) -> None:  # type: ignore[type-arg]
    """Leave out tests of slow models; compare no numbers of a prompt's tokens."""
    for item in list(items):
        if item.get_closest_marker("slow") and item.originalname not in SLOW:
            items.remove(item)
        elif hasattr(item, "callspec") and "LITERALLY" not in os.environ:
            params = item.callspec.params
            if "n_prompt" in params:
                params["n_prompt"] = _Number()


def pytest_runtest_logreport(report) -> None:  # type: ignore[no-untyped-def]
    """Keep the outcome of a test, and a line with its reason."""
    if report.when == "call" or report.outcome != "passed":
        why = ""
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash:
            why = crash.message.splitlines()[0]
        if isinstance(report.longrepr, tuple):
            why = report.longrepr[2]
        _results[report.nodeid.partition("::")[2]] = (report.outcome, why)


def pytest_sessionfinish() -> None:
    """Hand the results over."""
    Path(os.environ["RESULTS"]).write_text(json.dumps(_results))


def main() -> None:
    """Run the tests and print the table."""
    parser = Options(__doc__)
    parser.add_argument("tests", type=Path, help="llama.cpp's tools/server/tests")
    parser.option("--python", sys.executable, "an interpreter that has what the tests import")
    parser.switch("--literally", "compare texts and numbers of their model, too")
    parser.option("--log", Path(os.devnull), "a file for what pytest prints")
    parser.option("-k", "", "run these only, as pytest has it")
    options = parser.parse_args()
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        server = Path(folder, "server")
        server.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{here / "llama_shim.py"}" "$@"\n')
        server.chmod(0o700)
        variables = {
            "RESULTS": str(results),
            "LLAMA_SERVER_BIN_PATH": str(server),
            "PYTHONPATH": f"{here}{os.pathsep}{here.parent}",
        }
        if options.literally:
            variables["LITERALLY"] = "1"
        words = [options.python, "-m", "pytest", "-p", Path(__file__).stem]
        words += ["-p", "no:cacheprovider", "-k", options.k, *FILES]
        environment = os.environ | variables
        with options.log.open("wb") as log:
            subprocess.run(
                words, cwd=options.tests, env=environment, stdout=log, stderr=log, check=False
            )
        found: dict[str, tuple[str, str]] = json.loads(results.read_text())
    raise SystemExit(show(found))


def show(found: dict[str, tuple[str, str]]) -> int:
    """Print the table. Return 1 for an unexpected failure, else 0."""
    print("| test | result | why |\n|---|---|---|")
    unknown = 0
    count: Counter[str] = Counter()
    for name, (outcome, why) in found.items():
        count[outcome] += 1
        reason = _expected(name)
        if outcome == "failed" and reason is None:
            unknown += 1
        shown = reason or why
        if outcome == "passed":
            shown = ""
        print(f"| `{name}` | {outcome} | {shown} |")
    failed = f"{count['failed']} failed ({unknown} without a reason)"
    print(f"\n{count['passed']} of {count.total()} passed, {failed}")
    return int(unknown > 0)


def _expected(name: str) -> str | None:
    for beginning, reason in EXPECTED.items():
        if f"{name}[".startswith(beginning):
            return reason
    return None


if __name__ == "__main__":
    main()
