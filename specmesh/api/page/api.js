// Requests to the daemon that served this page.

import { askForKey, currentKey, forgetKey } from "./key.js";

const GONE = "The answer broke off: the daemon has gone.";
const NO_KEY = "An API key is needed.";

/** The daemon refused a request, or could not be reached. */
export class Refused extends Error {
  constructor(message, status, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/**
 * Resolve to a response with status 200.
 *
 * keyDialog: ask the visitor for an API key where one is needed.
 */
export async function request(path, options = {}, { keyDialog = true } = {}) {
  let key = currentKey();
  let response = await sent(path, options, key);
  while (response.status === 401 && keyDialog) {
    if (currentKey() === key) {
      forgetKey();
      key = await askForKey(key !== null);
    } else {
      key = currentKey();  // another request has asked meanwhile
    }
    if (key === null) {
      throw new Refused(NO_KEY, 401);
    }
    response = await sent(path, options, key);
  }
  if (response.status === 401) {
    throw new Refused(NO_KEY, 401);
  }
  if (!response.ok) {
    throw await refusalOf(response);
  }
  return response;
}

/** Resolve to the JSON at a path; asking: as `request` has it. */
export async function getJson(path, asking = {}) {
  const response = await request(path, {}, asking);
  return response.json();
}

/** Yield the chunks of a streamed answer. It ends early when `signal` aborts. */
export async function* streamed(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  let whole = false;
  for await (const data of serverSent(response.body)) {
    if (data === "[DONE]") {
      whole = true;  // the connection is read to its end, so that it can be used again
      continue;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) {
      throw new Refused(chunk.error.message, 200);
    }
    yield chunk;
  }
  if (!whole) {
    throw new Refused(GONE, 0);
  }
}

async function sent(path, options, key) {
  const headers = new Headers(options.headers);
  if (key !== null) {
    headers.set("Authorization", `Bearer ${key}`);
  }
  try {
    return await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new Refused("The daemon cannot be reached.", 0);
  }
}

async function refusalOf(response) {
  const text = await response.text();
  try {
    const { message, code } = JSON.parse(text).error;
    return new Refused(message, response.status, code);
  } catch {
    return new Refused(`The daemon answered with status ${response.status}.`, response.status);
  }
}

/** Resolve to what a reader has next. */
async function received(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new Refused(GONE, 0);
  }
}

/** Yield the data of server-sent events. */
async function* serverSent(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await received(reader);
      if (done) {
        return;
      }
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ")) {
          yield line.slice("data: ".length);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
