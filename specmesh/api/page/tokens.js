// Tokens of an answer, and the parts of its text that are theirs.

import { eachSource } from "./sources.js";

const MOST_PENDING = 256;  // tokens without text that are remembered

/**
 * Gives each part of an answer's text to its tokens.
 *
 * Text and tokens come together, but they are not the same: the marks around thoughts and calls of
 * tools are tokens and no text. So each part is looked for in the text of the tokens.
 */
export class TokenText {
  constructor() {
    this.counts = new Map();  // tokens by source
    this._decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    this._pending = [];  // tokens whose text has not come, as {token, text}
  }

  /** Count new tokens. scored: each with its bytes and log-probability. */
  add(scored, runs) {
    const sources = eachSource(runs);
    for (const source of sources) {
      this.counts.set(source, (this.counts.get(source) ?? 0) + 1);
    }
    scored.forEach((token, number) => {
      const text = this._decoder.decode(new Uint8Array(token.bytes), { stream: true });
      const source = sources[number] ?? "";
      this._pending.push({ token: { ...token, source }, text });
    });
  }

  /** Return a part of the answer as a list of {token, text}; a token of null is unknown. */
  split(part) {
    const texts = this._pending.map((pending) => pending.text);
    const begin = texts.join("").indexOf(part);
    if (begin < 0) {
      this._pending.splice(0, this._pending.length - MOST_PENDING);
      return [{ token: null, text: part }];
    }
    this._skip(begin);
    return this._take(part.length);
  }

  /** Forget so many characters. */
  _skip(size) {
    this._take(size);
  }

  /** Return so many characters with their tokens. */
  _take(size) {
    const taken = [];
    let left = size;
    while (left > 0) {
      const first = this._pending[0];
      const text = first.text.slice(0, left);
      if (text) {
        taken.push({ token: first.token, text });
      }
      left -= text.length;
      first.text = first.text.slice(text.length);
      if (!first.text) {
        this._pending.shift();
      }
    }
    return taken;
  }
}
