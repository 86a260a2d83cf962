"""The page in a real browser, with the real daemons and the bundled pair."""

import json
import os
import re
from pathlib import Path

import browser
import pytest
from harness import PATIENCE
from harness.ports import free_port
from processes import until

if browser.missing() and not browser.REQUIRED:
    pytest.skip(browser.missing(), allow_module_level=True)

assert not browser.missing(), browser.missing()

from playwright.sync_api import expect  # noqa: E402  (a missing one has its own words above)

expect.set_options(timeout=PATIENCE * 1000)

KEY = "sk-of-the-page"
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
SCREENSHOT = os.environ.get("SCREENSHOT", "")
"""Where `make screenshot` wants a picture of the page."""

HOSTILE = "<img src=x onerror='hacked=1'><script>hacked=2</script><b onclick='hacked=3'>&lt;"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
both_themes = pytest.mark.parametrize("theme", ["light", "dark"])


@pytest.fixture(scope="module")
def origins(shared):
    """The pages of a verifier with a template, of one with a key, and of a drafter without.

    Each by its name: its origin and its daemon.
    """
    template = shared.folder / "chat.jinja"
    template.write_text(TEMPLATE)
    made = {}

    def options(name):
        port = free_port()
        made[name] = f"http://127.0.0.1:{port}"
        return "--http", f"127.0.0.1:{port}"

    verifier = shared.verifier(
        "bundled", *options("verifier"), "--chat-template", template, engine="llama"
    )
    drafter = shared.drafter("bundled", *options("drafter"), engine="llama")
    return {
        "verifier": (made["verifier"], verifier),
        "drafter": (made["drafter"], drafter),
    }


@pytest.fixture(scope="module")
def keyed(shared):
    """The page of a daemon that wants a key, and takes its time: its origin, and the daemon."""
    keys = shared.folder / "page-keys"
    keys.touch(0o600)
    keys.write_text(KEY)
    port = free_port()
    options = ("--http", f"127.0.0.1:{port}", "--api-key-file", keys)
    daemon = shared.start(
        "verifier",
        *("--engine", "sim", "--model", "step_ms=20", "--bind", f"tcp://127.0.0.1:{free_port()}"),
        *options,
        name="keyed",
    )
    daemon.ready()
    return f"http://127.0.0.1:{port}", daemon


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as made:
        yield made


@pytest.fixture
def opened(chromium):
    """Open pages: opened(origin, size, theme), each in a profile of its own.

    At the end, none of them has asked elsewhere, and none has failed.
    """
    contexts = []
    asked = []
    failures = []

    def make(origin, size=WIDE, theme="light"):
        context = chromium.new_context(viewport=size, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on("request", lambda request: asked.append((origin, request.url)))
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(f"{origin}/")
        return page

    yield make
    for context in contexts:
        for page in context.pages:
            # A handler that still waits for the daemon would fail in the next test.
            page.unroute_all(behavior="ignoreErrors")
        context.close()
    assert [url for origin, url in asked if not url.startswith(f"{origin}/")] == []
    assert failures == []


@pytest.fixture
def page(opened, origins):
    return ready(opened(origins["verifier"][0]))


def ready(page):
    expect(page.locator("#model")).to_contain_text("context")
    return page


def unlock(page):
    """Give the key."""
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    ready(page)


def drafting(page, tokens=40, drafts=4):
    """Set the answer's tokens and its drafts in each step."""
    page.locator("#settings summary").click()
    page.fill("#max-tokens", str(tokens))
    page.fill("#draft-n", str(drafts))
    page.fill("#temperature", "0")
    page.locator("#settings summary").click()


def answer(page, prompt):
    """Return the chunks of the answer to a prompt, once the page has shown them."""
    with page.expect_response(re.compile("completions")) as answered:
        page.fill("#prompt", prompt)
        page.press("#prompt", "Enter")
    expect(page.locator("#status")).to_contain_text("Answer complete")
    return chunks_of(answered.value.text())


def chunks_of(body):
    lines = [line.removeprefix("data: ") for line in body.split("\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def last_report(chunks):
    [report] = [chunk["specmesh"]["report"] for chunk in chunks if "report" in chunk["specmesh"]]
    return report


def drafted_report(page):
    """Return the report of the first answer with accepted drafts; on a busy machine they are late.

    Only that answer is on the page.
    """

    def accepted():
        page.locator("#clear").click()
        report = last_report(answer(page, "def f("))
        return report if report["accepted"] else None

    return until(accepted, "drafts were accepted")


def legend(page):
    """Return the tokens of each source by the legend."""
    counts = {}
    for item in page.locator("#legend li").all():
        counts[item.get_attribute("data-source")] = int(item.locator(".count").inner_text())
    return counts


def with_tokens(counts):
    """Return the sources that gave a token: the legend may leave out the others."""
    return [source for source, count in counts.items() if count]


def test_a_chat_streams(page):
    chunks = answer(page, "class Stack:")
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert page.locator(".answer .tokens").text_content() == "".join(texts)


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_colours_match_the_report(opened, origins, role):
    page = ready(opened(origins[role][0]))
    drafting(page)
    report = drafted_report(page)
    accepted = {source: one["accepted"] for source, one in report["by_source"].items()}
    given = accepted | {"target": report["generated_tokens"] - sum(accepted.values())}
    shown = legend(page)
    assert shown == {source: given.get(source, 0) for source in {*shown, *with_tokens(given)}}
    coloured = {name: page.locator(f".answer .source-{name}").count() for name in given}
    assert coloured == given


def test_a_model_without_a_template_continues_a_text(opened, origins):
    page = ready(opened(origins["drafter"][0]))
    drafting(page, tokens=8)
    answer(page, "def f(")
    chunks = answer(page, "")
    assert "text" in chunks[0]["choices"][0]
    assert page.locator(".message.assistant").count() == 2


def test_curves_move(page):
    rate = page.locator("#curve-rate path.line-0")
    expect(rate).to_have_count(1)
    before = rate.get_attribute("d")
    drafting(page, tokens=200)
    answer(page, "import os")
    expect(rate).not_to_have_attribute("d", before)
    expect(page.locator("#curve-acceptance .bar").first).to_be_visible()
    expect(page.locator("#peers li")).to_have_count(1)


def test_a_hidden_page_asks_for_nothing(opened, origins):
    page = ready(opened(origins["verifier"][0]))
    expect(page.locator("#measured")).to_contain_text("verifier")
    page.clock.install()
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    assert asked == []


def streams(page, *deltas, **fields):
    """Let the page have these parts of a message as its next answer."""
    chunks = []
    for delta in deltas:
        chunks.append({"choices": [{"index": 0, "delta": delta}], "specmesh": {}} | fields)
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    body = "".join([*lines, "data: [DONE]\n\n"])
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )


def test_a_hostile_answer_stays_text(page):
    call = {"index": 0, "id": "1", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    parts = ({"reasoning_content": HOSTILE}, {"content": HOSTILE}, {"tool_calls": [call]})
    streams(page, *parts)
    answer(page, HOSTILE)
    page.locator("details.thought summary").click()
    for place in (".said", ".thought .tokens", ".answer > .tokens", ".call .tokens"):
        assert page.locator(place).inner_text() == HOSTILE
    assert page.locator("#messages :is(img, script, b)").count() == 0
    assert page.evaluate("typeof hacked") == "undefined"


def test_a_hostile_error_stays_text(page):
    error = json.dumps({"error": {"message": HOSTILE}})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, body=error))
    page.fill("#prompt", "Hi")
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_have_text(HOSTILE)
    assert page.locator("#problem *").count() == 0


def refuses(page, **error):
    """Let the page have an error as its next answer."""
    body = json.dumps({"error": {"message": "No.", **error}})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, body=body))


def test_a_refused_question_can_be_sent_again(page):
    """It is in its field as before, and the next question does not have it."""
    refuses(page)
    page.fill("#prompt", "Hi")
    page.press("#prompt", "Enter")
    expect(page.locator("#prompt")).to_have_value("Hi")
    expect(page.locator(".message")).to_have_count(0)
    page.unroute_all()
    with page.expect_request(re.compile("completions")) as asked:
        page.press("#prompt", "Enter")
    assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_question_is_asked_once(page):
    """Also if it is sent again while the page asks which model answers, as after an error."""
    refuses(page)
    page.fill("#prompt", "Hi")
    page.press("#prompt", "Enter")
    expect(page.locator("#prompt")).to_have_value("Hi")
    page.unroute_all()
    held = []
    asked = []

    def hold(route):
        held.append(route)

    page.route("**/props", hold)
    page.on("request", lambda request: asked.append(request.url))
    page.press("#prompt", "Enter")
    page.press("#prompt", "Enter")
    until(lambda: page.evaluate("1") and held, "the page asks which model answers")
    for route in held:
        route.continue_()
    expect(page.locator("#status")).to_contain_text("Answer complete")
    assert len([url for url in asked if "completions" in url]) == 1


def test_a_full_context_has_a_way_out(page):
    page.fill("#prompt", "x " * 2000)
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_contain_text("New begins a conversation")


def test_several_answers_fit_into_the_context(page):
    assert page.locator("#max-tokens").input_value() == "256"


BROKEN_STREAM = """
window.fetch = () => {
  const chunk = {choices: [{index: 0, delta: {content: "So far"}}], specmesh: {}};
  const text = "data: " + JSON.stringify(chunk) + "\\n\\n";
  let sent = false;
  const body = new ReadableStream({
    pull(stream) {
      if (sent) {
        stream.error(new TypeError("network error"));
      } else {
        stream.enqueue(new TextEncoder().encode(text));
      }
      sent = true;
    },
  }, {highWaterMark: 0});
  return Promise.resolve(new Response(body));
};
"""


def test_a_broken_answer_stays_as_far_as_it_came(page):
    page.evaluate(BROKEN_STREAM)
    page.fill("#prompt", "Hi")
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_have_text("The answer broke off: the daemon has gone.")
    assert page.locator(".answer").inner_text() == "So far"
    assert page.locator(".note").inner_text() == "broken off"


def test_another_daemon_at_the_same_address(page):
    """The page sees by its process that it was started anew, and asks what it serves now."""

    def restarted(route):
        body = route.fetch().json()
        route.fulfill(json=body | {"pid": 1})

    def without_template(route):
        body = route.fetch().json()
        route.fulfill(json=body | {"chat_template": ""})

    expect(page.locator("#measured")).to_contain_text("verifier")
    page.route("**/props", without_template)
    page.route("**/stats", restarted)
    expect(page.locator("#send")).to_have_text("Continue")


HISTORY = """async (drafted) => {
  const {History} = await import("/page/history.js");
  const history = new History();
  [0, 1, 2].forEach((second) => history.add({
    pid: 1, uptime_s: 100 + second, sessions: {live: 1}, steps_ms: {0: {1: 20 + second}},
    totals: {generated_tokens: 9 * second, accepted: 0, drafted: drafted * second},
  }));
  return {plain: history.rates("plain").at(-1)[1], range: history.range};
}"""


def test_the_rate_without_drafts_is_beside_one_with_drafts_only(page):
    assert page.evaluate(HISTORY, 1)["plain"] == pytest.approx(1000 / 22)
    assert page.evaluate(HISTORY, 0)["plain"] is None


def test_curves_begin_half_a_minute_ago(page):
    assert page.evaluate(HISTORY, 0)["range"] == [72, 102]


SLOW_STREAM = """
const real = window.fetch;
window.fetch = (path, options) => {
  if (!String(path).endsWith("chat/completions")) {
    return real(path, options);
  }
  const body = new ReadableStream({
    start(sent) {
      window.answerMore = (content) => {
        const specmesh = {token_ids: [1], source: [["target", 1]]};
        const chunk = {choices: [{index: 0, delta: {content}}], specmesh};
        sent.enqueue(new TextEncoder().encode("data: " + JSON.stringify(chunk) + "\\n\\n"));
      };
    },
  });
  return Promise.resolve(new Response(body));
};
"""
TO_THE_END = "list => list.scrollHeight - list.scrollTop - list.clientHeight"


def answers_slowly(page):
    """Return a function that lets more of an answer come, and waits until it is shown."""
    page.evaluate(SLOW_STREAM)
    page.fill("#prompt", "Hi")
    page.press("#prompt", "Enter")
    expect(page.locator("#stop")).to_be_visible()

    def more(text):
        page.evaluate("text => window.answerMore(text)", text)
        expect(page.locator(".answer")).to_contain_text(text.strip().splitlines()[-1])

    return more


def test_the_end_is_followed(page):
    more = answers_slowly(page)
    more("line\n" * 100)
    assert page.locator("#messages").evaluate(TO_THE_END) < 2
    more("last\n")
    assert page.locator("#messages").evaluate(TO_THE_END) < 2


def test_the_end_stays_in_sight_above_an_error(page):
    more = answers_slowly(page)
    more("line\n" * 100)
    page.evaluate("document.querySelector('#problem').textContent = 'No. '.repeat(100)")
    until(lambda: page.locator("#messages").evaluate(TO_THE_END) < 2, "it is in sight")


def test_a_visitor_who_has_scrolled_up_stays_there(page):
    more = answers_slowly(page)
    more("line\n" * 100)
    page.locator("#messages").evaluate("list => { list.scrollTop = 0; }")
    more("last\n")
    assert page.locator("#messages").evaluate("list => list.scrollTop") == 0


def test_thoughts_are_folded_and_calls_are_shown(page):
    call = {"index": 0, "id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    streams(page, {"reasoning_content": "Hm."}, {"content": "So."}, {"tool_calls": [call]})
    answer(page, "Hi")
    assert not page.locator(".thought .tokens").is_visible()
    assert page.locator(".call").inner_text() == 'Call of add\n{"a": 1}'


OPEN_STREAM = """
const real = window.fetch;
window.fetch = (path, options) => {
  if (!String(path).endsWith("chat/completions")) {
    return real(path, options);
  }
  const progress = {total: 6000, cache: 0, processed: 1500, time_ms: 12345};
  const chunk = {choices: [], prompt_progress: progress};
  const body = new ReadableStream({
    start(sent) {
      sent.enqueue(new TextEncoder().encode("data: " + JSON.stringify(chunk) + "\\n\\n"));
    },
  });
  return Promise.resolve(new Response(body));
};
"""


def test_a_long_prompt_has_a_bar(page):
    page.evaluate(OPEN_STREAM)
    page.fill("#prompt", "long")
    page.press("#prompt", "Enter")
    shown = "Reading the prompt: 1,500 of 6,000 tokens, 12 s"
    expect(page.locator("#reading-text")).to_have_text(shown)
    assert page.locator("#progress").get_attribute("value") is not None


def test_stop_ends_the_session(opened, keyed):
    origin, daemon = keyed
    page = opened(origin)
    unlock(page)
    drafting(page, tokens=3000)
    page.fill("#prompt", "x = 1")
    page.press("#prompt", "Enter")
    expect(page.locator(".answer .token").first).to_be_visible()
    page.locator("#stop").click()
    expect(page.locator("#status")).to_contain_text("stopped")
    until(lambda: daemon.stats()["sessions"]["ended"]["cancelled"], "its session was cancelled")


def test_a_key_is_asked_once_and_kept(opened, keyed):
    page = opened(keyed[0])
    dialog = page.locator("#key-dialog")
    expect(dialog).to_be_visible()
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    expect(page.locator("#key-why")).to_contain_text("refused")
    unlock(page)
    expect(dialog).to_be_hidden()
    page.reload()
    ready(page)
    expect(page.locator("#measured")).to_contain_text("verifier")
    assert not dialog.is_visible()
    assert KEY not in page.url
    assert page.evaluate("Object.values(sessionStorage)") == [KEY]
    assert page.evaluate("Object.values(localStorage)") == []


def focused(page):
    return page.evaluate("document.activeElement.id || document.activeElement.className")


def tab_to(page, name, key="Tab"):
    """Press a key until an element has the focus, by its id or class."""
    for _ in range(40):
        if focused(page) == name:
            return
        page.keyboard.press(key)
    raise AssertionError(f"{name} is not reached; {focused(page)} has the focus")


def test_a_refused_dialog_is_not_shown_again(opened, keyed):
    """Measurements ask for no key; a question does, and stays where it is without one."""
    page = opened(keyed[0])
    dialog = page.locator("#key-dialog")
    expect(dialog).to_be_visible()
    page.locator("#key-cancel").click()
    expect(page.locator("#model")).to_have_text("An API key is needed.")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#measured")).to_have_text("An API key is needed.")
    assert not dialog.is_visible()
    page.fill("#prompt", "x")
    page.press("#prompt", "Enter")
    expect(dialog).to_be_visible()
    page.press("#key", "Escape")
    expect(page.locator("#problem")).to_have_text("An API key is needed.")
    assert page.locator("#prompt").input_value() == "x"
    assert page.locator(".message").count() == 0


def test_the_focus_stays_where_a_button_was(opened, keyed):
    page = opened(keyed[0])
    unlock(page)
    drafting(page, tokens=3000)
    page.fill("#prompt", "x")
    page.focus("#send")
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_be_focused()


def test_keyboard_only(page):
    tab_to(page, "prompt")
    page.keyboard.type("def f(")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Answer complete")
    tab_to(page, "answer", "Shift+Tab")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert "probability" in page.locator("#detail").inner_text()
    tab_to(page, "clear")
    page.keyboard.press("Enter")
    expect(page.locator(".message")).to_have_count(0)


def test_a_reader_is_not_read_each_token(page):
    """Of the places that are read aloud, none has a part of the messages."""
    answer(page, "class Stack:")
    assert page.locator("#messages :is([aria-live], [role=log], [role=status])").count() == 0
    assert page.locator(":is([aria-live], [role=log]):has(#messages)").count() == 0


CONTRASTS = """() => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const ground = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("script")) continue;
    const style = getComputedStyle(element);
    const text = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const pair = [light(channels(text)), light(ground(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) low.push([element.className, element.textContent.slice(0, 20), contrast]);
  }
  return low;
}"""

SOURCES = """() => {
  const names = ["target", "remote", "grammar", "prediction", "suffix", "mtp", "local", "other"];
  for (const name of names) {
    const token = document.createElement("span");
    token.className = `token source-${name}`;
    token.textContent = name;
    document.querySelector("#legend").append(token);
  }
}"""


@both_themes
def test_contrast(opened, origins, theme):
    """Every text, of every source too, has the contrast of WCAG's level AA."""
    page = ready(opened(origins["verifier"][0], theme=theme))
    drafting(page, tokens=8)
    answer(page, "class Stack:")
    page.evaluate(SOURCES)
    page.locator("#settings summary").click()
    assert page.evaluate(CONTRASTS) == []


@both_themes
def test_a_phone_scrolls_down_only(opened, origins, theme):
    page = ready(opened(origins["verifier"][0], PHONE, theme))
    drafting(page)
    answer(page, "class " + "Stack" * 60)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    send = page.locator("#send").bounding_box()
    assert send["y"] + send["height"] <= PHONE["height"]


def test_a_picture_of_the_page(opened, origins, tmp_path):
    """`make screenshot` keeps it for README."""
    picture = Path(SCREENSHOT or tmp_path / "page.png")
    page = ready(opened(origins["verifier"][0], {"width": 1200, "height": 720}))
    drafting(page, tokens=220)
    for prompt in ("def read_config(path):", "class Stack:"):
        answer(page, prompt)
    page.screenshot(path=picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
