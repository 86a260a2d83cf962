// What is asked and answered: a chat, or the continuation of a text where there is no template.

import { Refused, streamed } from "./api.js";
import { Answer } from "./answer.js";
import { made } from "./dom.js";

const ALTERNATIVES = 3;
const STOPPED = "stopped";
const SHARED = { stream: true, sources: true, return_progress: true };

/**
 * Asks for answers, one at a time, and shows them.
 *
 * show: what the page shows beside the messages: `counts`, `progress`.
 */
export class Conversation {
  constructor(list, show) {
    this.isChat = true;
    this._list = list;
    this._show = show;
    this._aborts = null;
    this.undone = false;
    this.clear();
  }

  get answering() {
    return this._aborts !== null;
  }

  /** Return true if there is a text that can be continued. */
  get hasText() {
    return this._text !== "";
  }

  /** Return the call of a tool whose result is awaited, or null. */
  get openCall() {
    return this._openCalls[0] ?? null;
  }

  clear() {
    this._messages = [];
    this._openCalls = [];
    this._text = "";  // of a continuation, with its prompt
    this._list.replaceChildren();
    this._show.counts(new Map());
  }

  /** End the answer that is written, and with it its session. */
  stop() {
    this._aborts?.abort();
  }

  /**
   * Ask with this prompt. Resolve to the answer, or null if none was asked.
   *
   * A question that fails before anything has come is `undone`: as if it had not been asked.
   */
  async ask(prompt, settings) {
    const before = this._state();
    this.undone = false;
    const [path, body] = this.isChat ? this._chat(prompt, settings) : this._continue(prompt);
    if (body === null) {
      return null;
    }
    this._aborts = new AbortController();
    const answer = this._newAnswer();
    let outcome = "";
    let failed = false;
    try {
      const asked = { ...SHARED, ...settings.sampling, ...body };
      for await (const chunk of streamed(path, asked, this._aborts.signal)) {
        this._show.progress(chunk.prompt_progress ?? null);
        answer.add(chunk);
      }
      outcome = answer.finish === "length" ? "reached the maximum of tokens" : "";
    } catch (error) {
      outcome = outcomeOf(error);
      failed = error.name !== "AbortError";
      if (failed) {
        throw error;
      }
    } finally {
      this._aborts = null;
      this._show.progress(null);
      this._line = answer.end(outcome);
      if (failed && answer.isEmpty) {
        this._restore(before);
        this.undone = true;
      } else {
        this._keep(answer);
      }
    }
    return { line: this._line, text: answer.text, stopped: outcome === STOPPED };
  }

  /** Return what a question that fails must leave as it was. */
  _state() {
    return {
      messages: [...this._messages],
      openCalls: [...this._openCalls],
      text: this._text,
      items: [...this._list.children],
    };
  }

  _restore({ messages, openCalls, text, items }) {
    this._messages = messages;
    this._openCalls = openCalls;
    this._text = text;
    this._list.replaceChildren(...items);
  }

  /** Return the request of the next turn; no body while results of other calls are awaited. */
  _chat(prompt, settings) {
    const call = this._openCalls.shift();
    if (call !== undefined) {
      this._messages.push({ role: "tool", tool_call_id: call.id, content: prompt });
      this._message("tool", `Result of ${call.function.name}`, prompt);
      if (this._openCalls.length > 0) {
        return ["", null];
      }
    } else {
      this._messages.push({ role: "user", content: prompt });
      this._message("user", "You", prompt);
    }
    const messages = [...this._messages];
    if (settings.system) {
      messages.unshift({ role: "system", content: settings.system });
    }
    const body = { messages, logprobs: true, top_logprobs: ALTERNATIVES };
    if (settings.tools.length > 0) {
      body.tools = settings.tools;
    }
    return ["v1/chat/completions", body];
  }

  /** Return the request that continues a new text, or the last one where there is none. */
  _continue(prompt) {
    if (prompt) {
      this._text = prompt;
      this._message("user", "Text", prompt);
    }
    return ["v1/completions", { prompt: this._text, logprobs: ALTERNATIVES }];
  }

  _keep(answer) {
    this._text += answer.text;
    if (!this.isChat) {
      return;
    }
    const message = { role: "assistant", content: answer.text };
    if (answer.calls.length > 0 && answer.finish === "tool_calls") {
      message.tool_calls = answer.calls;
      this._openCalls = [...answer.calls];
    }
    this._messages.push(message);
  }

  _newAnswer() {
    const item = this._item("assistant", this.isChat ? "Model" : "Continuation");
    const answer = new Answer(item, this._show.counts);
    this._list.scrollTop = this._list.scrollHeight;
    return answer;
  }

  _message(kind, title, text) {
    this._item(kind, title).append(made("div", "said", text));
  }

  _item(kind, title) {
    const item = made("li", `message ${kind}`);
    item.append(made("h3", "", title));
    this._list.append(item);
    return item;
  }
}

function outcomeOf(error) {
  if (error.name === "AbortError") {
    return STOPPED;
  }
  return error instanceof Refused ? "broken off" : "failed on this page";
}
