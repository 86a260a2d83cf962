// Requests to the daemon that served this page.

import { askForKey, currentKey, forgetKey } from "./key.js";

/** The daemon refused a request, or could not be reached. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Resolve to a response with status 200. Ask for an API key where one is needed. */
export async function request(path, options = {}) {
  let key = currentKey();
  let response = await sent(path, options, key);
  while (response.status === 401) {
    if (currentKey() === key) {
      forgetKey();
      key = await askForKey(key !== null);
    } else {
      key = currentKey();  // another request has asked meanwhile
    }
    if (key === null) {
      throw new Refused("An API key is needed.", 401);
    }
    response = await sent(path, options, key);
  }
  if (!response.ok) {
    throw new Refused(await reasonOf(response), response.status);
  }
  return response;
}

export async function getJson(path) {
  const response = await request(path);
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
    throw new Refused("The answer broke off: the daemon has gone.", 0);
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

async function reasonOf(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return body.error.message;
  } catch {
    return `The daemon answered with status ${response.status}.`;
  }
}

/** Yield the data of server-sent events. */
async function* serverSent(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
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
