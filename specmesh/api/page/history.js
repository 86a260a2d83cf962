// Measurements of the last minutes, made of the snapshots that /stats gives.

const KEPT_S = 180;
const RECENT_S = 60;
const SHORTEST_S = 30;  // that a drawing shows
const FRESH_S = 120;  // how long a measured step without drafts counts

/** Snapshots of one daemon, newest last. A daemon that was started anew begins a new history. */
export class History {
  constructor() {
    this._snapshots = [];
    this._measured = new Map();  // by context and rows: the last value, and when it changed
    this._rates = [];
  }

  add(stats) {
    const last = this.newest;
    if (last !== undefined && last.pid !== stats.pid) {
      this._snapshots = [];
      this._measured.clear();
      this._rates = [];
    }
    this._noteSteps(stats);
    if (this.newest !== undefined) {
      this._rates.push(this._rate(this.newest, stats));
    }
    this._snapshots.push(stats);
    const oldest = stats.uptime_s - KEPT_S;
    this._snapshots = this._snapshots.filter(({ uptime_s }) => uptime_s >= oldest);
    this._rates = this._rates.filter(({ at }) => at >= oldest);
  }

  get newest() {
    return this._snapshots[this._snapshots.length - 1];
  }

  /** Return the first and the last second of what is kept, at least half a minute apart. */
  get range() {
    const now = this.newest.uptime_s;
    const kept = now - this._snapshots[0].uptime_s;
    return [now - Math.max(kept, SHORTEST_S), now];
  }

  /** Return points of a value of each snapshot. */
  points(valueOf) {
    return this._snapshots.map((stats) => [stats.uptime_s, valueOf(stats) ?? null]);
  }

  /** Return points of what was counted between two snapshots. */
  rates(name) {
    return this._rates.map((rate) => [rate.at, rate[name]]);
  }

  /** Return the accepted share of compared drafts by position, of late or since the start. */
  acceptance() {
    const now = this.newest;
    const since = now.uptime_s - RECENT_S;
    const before = this._snapshots.findLast(({ uptime_s }) => uptime_s <= since);
    const first = before ?? this._snapshots[0];
    const recent = shares(now.totals, first.totals);
    if (recent.length > 0) {
      return { shares: recent, span: "last minute" };
    }
    return { shares: shares(now.totals, { tested_at: [], accepted_at: [] }), span: "since start" };
  }

  _rate(before, now) {
    const seconds = now.uptime_s - before.uptime_s;
    const tokens = generated(now) - generated(before);
    const drafted = now.totals.drafted ?? now.totals.draft_tokens;
    const draftedBefore = before.totals.drafted ?? before.totals.draft_tokens;
    const accepted = now.totals.accepted - before.totals.accepted;
    const drafts = drafted - draftedBefore;
    return {
      at: now.uptime_s,
      tokens: seconds > 0 ? tokens / seconds : null,
      plain: tokens > 0 && drafts > 0 ? this._withoutDrafts(now) : null,
      accepted: drafts > 0 ? Math.min(accepted / drafts, 1) : null,
    };
  }

  _noteSteps(stats) {
    for (const [context, table] of Object.entries(stats.steps_ms ?? {})) {
      for (const [rows, ms] of Object.entries(table)) {
        const name = `${context} ${rows}`;
        const known = this._measured.get(name);
        if (known === undefined) {
          this._measured.set(name, { rows: Number(rows), ms, at: null });
        } else if (known.ms !== ms) {
          this._measured.set(name, { rows: known.rows, ms, at: stats.uptime_s });
        }
      }
    }
  }

  /**
   * Return the tokens per second of steps with one row for each session, which have no drafts.
   * Null unless such a step was measured in the last minutes.
   */
  _withoutDrafts(stats) {
    const rows = Math.max(stats.sessions.live, 1);
    let newest = null;
    for (const step of this._measured.values()) {
      const fresh = step.at !== null && step.at >= stats.uptime_s - FRESH_S;
      if (step.rows === rows && fresh && (newest === null || step.at > newest.at)) {
        newest = step;
      }
    }
    if (newest === null) {
      return null;
    }
    return (1000 * rows) / (newest.ms + (stats.pause_ms?.p50 ?? 0));
  }
}

/** Return the tokens that a verifier generated, or that a drafter saw committed. */
function generated(stats) {
  return stats.totals.generated_tokens ?? stats.totals.committed;
}

function shares(now, before) {
  const found = [];
  now.tested_at.forEach((count, position) => {
    const tested = count - (before.tested_at[position] ?? 0);
    const acceptedBefore = before.accepted_at[position] ?? 0;
    const accepted = (now.accepted_at[position] ?? 0) - acceptedBefore;
    if (tested > 0) {
      found.push({ name: String(position + 1), share: accepted / tested });
    }
  });
  return found;
}
