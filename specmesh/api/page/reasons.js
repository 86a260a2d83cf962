// Why nothing is drafted: the words of a daemon, and what the page shows for them.

const REASONS = {
  "client asked for none": "none were asked for",
  "none attached": "no drafter is connected",
  "vocabulary": "the draft model has other tokens than the target",
  "context": "the text is longer than a drafter can hold",
  "grammar": "the grammar leaves no time for them",
  "gate": "they would cost more time than they save",
  "fault": "there were too many errors, which the server's log has",
  "drafter behind": "they come too late",
};

/** Return a reason in words. A drafter's own reason is a sentence already. */
export function reasonInWords(reason) {
  if (Object.hasOwn(REASONS, reason)) {
    return REASONS[reason];
  }
  return String(reason).replaceAll("_", " ");
}
