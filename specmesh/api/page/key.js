// The API key: asked once, kept in sessionStorage, sent in a header only.

import { byId } from "./dom.js";

const NAME = "specmesh-key";

const FIRST = "This daemon asks for an API key. It is kept until this tab is closed.";
const AGAIN = "The daemon refused this key. Give another one.";

let asking = null;

export function currentKey() {
  return sessionStorage.getItem(NAME);
}

export function forgetKey() {
  sessionStorage.removeItem(NAME);
}

/** Resolve to a key that the visitor gives, or to null. Requests that wait together ask once. */
export function askForKey(refused) {
  if (asking === null) {
    asking = ask(refused).finally(() => {
      asking = null;
    });
  }
  return asking;
}

function ask(refused) {
  const dialog = byId("key-dialog");
  const input = byId("key");
  const why = byId("key-why");
  why.textContent = refused ? AGAIN : FIRST;
  input.value = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    const ended = new AbortController();
    const end = (key) => {
      ended.abort();
      input.value = "";
      dialog.close();
      resolve(key);
    };
    const options = { signal: ended.signal };
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const key = input.value.trim();
      sessionStorage.setItem(NAME, key);
      end(key);
    }, options);
    byId("key-cancel").addEventListener("click", () => end(null), options);
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      end(null);
    }, options);
  });
}
