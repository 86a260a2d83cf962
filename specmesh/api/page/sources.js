// Sources of tokens: the names that a daemon sends, and what the page shows for them.

const MEANINGS = {
  target: "the target model itself",
  remote: "a draft of a drafter",
  grammar: "forced by a grammar",
  prediction: "from the request's prediction",
  suffix: "from earlier text",
  mtp: "a draft of the target's own head",
  local: "a draft model beside the target",
};

/** Return the class that colours a source. */
export function classOf(source) {
  if (source === "" || Object.hasOwn(MEANINGS, source)) {
    return `source-${source || "unknown"}`;
  }
  return "source-other";
}

export function meaningOf(source) {
  if (Object.hasOwn(MEANINGS, source)) {
    return MEANINGS[source];
  }
  return "a source that this page does not know";
}

/** Return the source of each token of runs such as [["remote", 3], ["target", 1]]. */
export function eachSource(runs) {
  const sources = [];
  for (const [source, count] of runs) {
    for (let number = 0; number < count; number += 1) {
      sources.push(source);
    }
  }
  return sources;
}
