// The legend: each source with the tokens that it gave to the newest answer.

import { made } from "./dom.js";
import { classOf, meaningOf } from "./sources.js";

const ALWAYS = ["target", "remote"];

export function showLegend(list, counts) {
  const sources = new Set([...ALWAYS, ...counts.keys()]);
  const items = [];
  for (const source of sources) {
    const item = made("li");
    item.dataset.source = source;
    const count = made("span", "count", String(counts.get(source) ?? 0));
    const meaning = made("span", "quiet", meaningOf(source));
    item.append(made("span", `token ${classOf(source)}`, source), " ", count, " ", meaning);
    items.push(item);
  }
  list.replaceChildren(...items);
}
