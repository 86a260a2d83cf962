// The element of one answer, which grows as its chunks come.

import { counted, made, percent } from "./dom.js";
import { reasonInWords } from "./reasons.js";
import { classOf, meaningOf } from "./sources.js";
import { TokenText } from "./tokens.js";

const HELP = "Answer. The arrow keys go from token to token.";
const tokenOf = new WeakMap();

export class Answer {
  constructor(item, onCounts) {
    this.text = "";
    this.calls = [];
    this.report = null;
    this.finish = null;
    this._onCounts = onCounts;
    this._tokens = new TokenText();
    this._waiting = [];  // parts of the text whose tokens have not come
    this._kind = "";
    this._block = null;
    this._box = made("div", "answer");
    this._box.tabIndex = 0;
    this._box.setAttribute("role", "group");
    this._box.setAttribute("aria-label", HELP);
    this._note = made("p", "quiet note", "answering");
    item.append(this._box, this._note);
    this._list = item.parentElement;
    onCounts(this.counts);
  }

  get counts() {
    return this._tokens.counts;
  }

  /** Return the number of tokens that have come. */
  get size() {
    let size = 0;
    for (const count of this.counts.values()) {
      size += count;
    }
    return size;
  }

  /** Return true if nothing has come. */
  get isEmpty() {
    return this.size === 0 && this._box.childElementCount === 0;
  }

  /** Add a chunk of a chat or of a completion. */
  add(chunk) {
    const choice = chunk.choices?.[0];
    if (choice === undefined) {
      return;
    }
    this._read(choice);
    const ours = chunk.specmesh ?? {};
    if (ours.token_ids) {
      const scored = choice.logprobs?.content ?? ours.logprobs ?? [];
      this._tokens.add(scored, ours.source ?? []);
      this._show();
      this._onCounts(this.counts);
    }
    this.report = ours.report ?? this.report;
    this.finish = choice.finish_reason ?? this.finish;
  }

  /** Show what is left, and a line about the whole answer. */
  end(outcome) {
    this._show();
    const follows = isAtEnd(this._list);
    this._note.textContent = [outcome, ...this._facts()].filter(Boolean).join(", ");
    if (follows) {
      this._list.scrollTop = this._list.scrollHeight;
    }
    return this._note.textContent;
  }

  _read(choice) {
    const delta = choice.delta ?? { content: choice.text };
    if (delta.reasoning_content) {
      this._waiting.push({ kind: "thought", text: delta.reasoning_content });
    }
    if (delta.content) {
      this.text += delta.content;
      this._waiting.push({ kind: "text", text: delta.content });
    }
    for (const call of delta.tool_calls ?? []) {
      this._readCall(call);
    }
  }

  _readCall(part) {
    if (part.id) {
      const begun = { id: part.id, type: "function", function: { name: "", arguments: "" } };
      begun.function.name = part.function.name;
      this.calls.push(begun);
      this._waiting.push({ kind: "call", text: "", name: part.function.name });
    }
    const text = part.function.arguments;
    if (text) {
      this.calls[this.calls.length - 1].function.arguments += text;
      this._waiting.push({ kind: "call", text });
    }
  }

  _show() {
    const follows = isAtEnd(this._list);
    for (const part of this._waiting) {
      const block = this._blockFor(part);
      for (const { token, text } of this._tokens.split(part.text)) {
        block.append(token === null ? text : tokenElement(token, text));
      }
    }
    this._waiting = [];
    if (follows) {
      this._list.scrollTop = this._list.scrollHeight;
    }
  }

  /** Return the element for a part: one for each call, and one for text or thoughts in a row. */
  _blockFor(part) {
    if (part.kind === this._kind && part.name === undefined) {
      return this._block;
    }
    this._kind = part.kind;
    const body = made("div", "tokens");
    this._block = body;
    if (part.kind === "text") {
      this._box.append(body);
    } else {
      const folded = made("details", part.kind);
      folded.open = part.kind === "call";
      const title = part.kind === "call" ? `Call of ${part.name}` : "Thoughts";
      folded.append(made("summary", "", title), body);
      this._box.append(folded);
    }
    return body;
  }

  _facts() {
    const report = this.report;
    if (report === null) {
      return this.size > 0 ? [counted(this.size, "token")] : [];
    }
    const facts = [counted(report.generated_tokens, "token")];
    facts.push(`${report.tokens_per_second.toFixed(1)} tokens/s`);
    if (report.drafted) {
      facts.push(`${report.accepted} of ${report.drafted} drafts accepted`);
      facts[facts.length - 1] += ` (${percent(report.acceptance_rate)})`;
    } else if (report.no_drafts) {
      facts.push(`no drafts: ${reasonInWords(report.no_drafts)}`);
    }
    return facts;
  }
}

/** Return true if the end of a list is seen, so that it may follow what comes. */
function isAtEnd(list) {
  return list.scrollHeight - list.scrollTop - list.clientHeight < 40;
}

/** Keep the end of a list in sight where it was, also as the place for the list becomes smaller. */
export function keepEnd(list) {
  let wasAtEnd = true;
  let height = list.clientHeight;
  list.addEventListener("scroll", () => {
    // The event of an earlier scroll may come when the place is smaller already: it shows nothing.
    if (list.clientHeight === height) {
      wasAtEnd = isAtEnd(list);
    }
  });
  const observer = new ResizeObserver(() => {
    height = list.clientHeight;
    if (wasAtEnd) {
      list.scrollTop = list.scrollHeight;
    }
  });
  observer.observe(list);
}

function tokenElement(token, text) {
  const element = made("span", `token ${classOf(token.source)}`, text);
  tokenOf.set(element, token);
  return element;
}

/** Show a token's source and probability in `line` as it is pointed at or reached by keys. */
export function watchTokens(list, line) {
  let current = null;
  const choose = (element) => {
    current?.classList.remove("current");
    current = element;
    current.classList.add("current");
    line.textContent = described(element.textContent, tokenOf.get(element));
  };
  for (const event of ["pointerover", "click"]) {
    list.addEventListener(event, ({ target }) => {
      if (tokenOf.has(target) && target !== current) {
        choose(target);
      }
    });
  }
  list.addEventListener("keydown", (event) => {
    const box = event.target;
    if (!box.classList.contains("answer")) {
      return;
    }
    const tokens = [...box.querySelectorAll(".token")].filter((token) => token.checkVisibility());
    const next = nextIndex(event.key, tokens.indexOf(current), tokens.length);
    if (next !== null && tokens.length > 0) {
      event.preventDefault();
      choose(tokens[next]);
      tokens[next].scrollIntoView({ block: "nearest" });
    }
  });
}

function nextIndex(key, index, count) {
  switch (key) {
    case "ArrowRight":
      return Math.min(index + 1, count - 1);
    case "ArrowLeft":
      return Math.max(index - 1, 0);
    case "Home":
      return 0;
    case "End":
      return count - 1;
    default:
      return null;
  }
}

function described(text, token) {
  const parts = [`“${visible(text)}”`];
  if (token.source) {
    parts.push(`${token.source} (${meaningOf(token.source)})`);
  }
  if (token.logprob !== null) {
    parts.push(`probability ${percent(Math.exp(token.logprob))}`);
  }
  const others = token.top_logprobs.filter((other) => other.id !== token.id);
  for (const other of others) {
    parts.push(`“${visible(other.token)}” ${percent(Math.exp(other.logprob))}`);
  }
  return parts.join(" · ");
}

/** Return a text with marks for what cannot be seen. */
function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}
