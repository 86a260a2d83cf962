// The page: joins the conversation, the measurements and the controls.

import { getJson } from "./api.js";
import { keepEnd, watchTokens } from "./answer.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { currentKey, forgetKey } from "./key.js";
import { showLegend } from "./legend.js";
import { Measurements } from "./measurements.js";
import { watchTheme } from "./theme.js";

const AGAIN_MS = 2000;
const MOST_TOKENS = 512;
const NUMBERS = { temperature: "temperature", seed: "seed", draft_n: "draft-n" };

const measurements = new Measurements(() => {
  known = false;
  keepLearning();
});
const conversation = new Conversation(byId("messages"), {
  counts: (counts) => showLegend(byId("legend"), counts),
  progress: showProgress,
});
let known = false;  // which model answers, and whether it has a template
let sending = false;  // a question is about to be asked, or is answered

/** Show which model answers, and whether by chat. Throw an error if it cannot be learnt. */
async function learn() {
  try {
    const props = await getJson("props");
    conversation.isChat = Boolean(props.chat_template);
    known = true;
    const context = props.default_generation_settings.n_ctx;
    const size = context ? `, ${context.toLocaleString("en")} tokens of context` : "";
    byId("model").textContent = `${props.model_alias}${size}`;
    fitTo(context);
    showControls();
  } catch (error) {
    byId("model").textContent = error.message;
    throw error;
  }
}

/** Learn it while the daemon starts, too. */
async function keepLearning() {
  if (known) {
    return;
  }
  try {
    await learn();
    measurements.start();
  } catch (error) {
    if (error.status !== 401) {
      measurements.start();
      setTimeout(whenVisible, AGAIN_MS, keepLearning);
    }
  }
}

/** Let several answers fit into a small context, unless the visitor has set their length. */
function fitTo(context) {
  const field = byId("max-tokens");
  if (context && field.value === field.defaultValue) {
    field.value = Math.min(MOST_TOKENS, Math.floor(context / 4));
    field.defaultValue = field.value;
  }
}

/** Call a function now, or as soon as the page is seen. */
function whenVisible(work) {
  if (document.hidden) {
    document.addEventListener("visibilitychange", () => whenVisible(work), { once: true });
  } else {
    work();
  }
}

/** Show the controls that fit: of a chat or a continuation, while an answer comes or not. */
function showControls() {
  const { isChat, answering, openCall } = conversation;
  let label = isChat ? "Message" : "Text to continue (empty: continue the last one)";
  if (openCall !== null) {
    label = `Result of ${openCall.function.name}`;
  }
  byId("prompt-label").textContent = label;
  byId("send").textContent = isChat ? "Send" : "Continue";
  swap(byId("send"), byId("stop"), answering);
  byId("clear").disabled = answering;
  byId("system-label").hidden = !isChat;
  byId("tools-label").hidden = !isChat;
  byId("forget-key").hidden = currentKey() === null;
}

/** Show the second of two buttons in the place of the first, or the first. The focus stays there. */
function swap(first, second, isSecond) {
  const [gone, shown] = isSecond ? [first, second] : [second, first];
  const focused = document.activeElement === gone;
  gone.hidden = true;
  shown.hidden = false;
  if (focused) {
    shown.focus();
  }
}

function showProgress(progress) {
  byId("reading").hidden = progress === null;
  if (progress === null) {
    return;
  }
  const { processed, total, time_ms: milliseconds } = progress;
  byId("progress").max = total;
  byId("progress").value = processed;
  const read = processed.toLocaleString("en");
  const all = total.toLocaleString("en");
  const seconds = Math.round(milliseconds / 1000);
  byId("reading-text").textContent = `Reading the prompt: ${read} of ${all} tokens, ${seconds} s`;
}

/** Return the settings. Throw an error that names a field that cannot be read. */
function settings() {
  const sampling = { max_tokens: numberOf("max-tokens") ?? -1 };
  for (const [name, id] of Object.entries(NUMBERS)) {
    const value = numberOf(id);
    if (value !== null) {
      sampling[name] = value;
    }
  }
  return { sampling, system: byId("system").value.trim(), tools: toolsGiven() };
}

function numberOf(id) {
  const { value, valueAsNumber } = byId(id);
  return value === "" || Number.isNaN(valueAsNumber) ? null : valueAsNumber;
}

function toolsGiven() {
  const text = byId("tools").value.trim();
  if (!text) {
    return [];
  }
  try {
    const tools = JSON.parse(text);
    if (Array.isArray(tools)) {
      return tools;
    }
  } catch {
    // said below
  }
  throw new Error("Tools must be a JSON list, as OpenAI's API has it.");
}

async function send() {
  const prompt = byId("prompt").value;
  const empty = prompt.trim() === "";
  if (sending || (empty && (conversation.isChat || !conversation.hasText))) {
    return;
  }
  sending = true;
  byId("problem").textContent = "";
  try {
    if (!known) {
      await learn();
    }
    const given = settings();
    const asked = conversation.ask(prompt, given);
    byId("prompt").value = "";
    say(conversation.answering ? "Answering" : "");
    measurements.busy = conversation.answering;
    measurements.start();
    showControls();
    const answer = await asked;
    if (answer !== null) {
      say(endOf(answer));
      byId("spoken").textContent = answer.text;
    }
  } catch (error) {
    say("");
    byId("problem").textContent = problemOf(error);
    if (conversation.undone && byId("prompt").value === "") {
      byId("prompt").value = prompt;  // to be sent again
    }
    known = false;  // another model may have come
  }
  sending = false;
  measurements.busy = false;
  measurements.start();
  showControls();
}

function endOf({ line, stopped }) {
  if (stopped) {
    return `Answer ${line}`;
  }
  return line ? `Answer complete: ${line}` : "Answer complete";
}

function problemOf(error) {
  if (error.code === "context_length_exceeded") {
    return `${error.message}. New begins a conversation without the earlier messages.`;
  }
  return error.message;
}

function say(text) {
  byId("status").textContent = text;
}

function stop() {
  if (conversation.answering) {
    conversation.stop();
  }
}

function begin() {
  watchTheme(byId("theme"));
  keepEnd(byId("messages"));
  watchTokens(byId("messages"), byId("detail"));
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing) {
      stop();
    }
  });
  byId("stop").addEventListener("click", stop);
  byId("clear").addEventListener("click", () => {
    conversation.clear();
    say("");
    byId("problem").textContent = "";
    showControls();
    byId("prompt").focus();
  });
  byId("forget-key").addEventListener("click", () => {
    forgetKey();
    showControls();
  });
  whenVisible(keepLearning);
  byId("prompt").focus();
}

begin();
