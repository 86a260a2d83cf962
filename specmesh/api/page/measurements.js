// The measurements beside the conversation. A hidden page asks for none.

import { getJson } from "./api.js";
import { Chart } from "./curves.js";
import { byId, counted, made, percent, short } from "./dom.js";
import { History } from "./history.js";
import { reasonInWords } from "./reasons.js";

const BUSY_MS = 1000;
const IDLE_MS = 3000;
const MOST_LINES = 4;

/** onRestart: called when another process answers than before. */
export class Measurements {
  constructor(onRestart) {
    this.busy = false;  // an answer comes here, so that there is news each second
    this._onRestart = onRestart;
    this._history = new History();
    this._timer = null;
    this._asking = false;
    this._charts = null;
    document.addEventListener("visibilitychange", () => this.start());
  }

  /** Begin to ask, or ask at once; end while the page is hidden. */
  start() {
    clearTimeout(this._timer);
    this._timer = null;
    if (!document.hidden && !this._asking) {
      this._ask();
    }
  }

  async _ask() {
    this._asking = true;
    let pause = IDLE_MS;
    try {
      const stats = await getJson("stats", { keyDialog: false });
      pause = this._show(stats);
    } catch (error) {
      byId("measured").textContent = error.message;
      if (error.status === 401) {
        pause = null;  // until the visitor sends something, and is asked for a key
      }
    } finally {
      this._asking = false;
    }
    if (pause !== null && !document.hidden) {
      this._timer = setTimeout(() => this._ask(), pause);
    }
  }

  /** Show a snapshot; return the milliseconds until the next one. */
  _show(stats) {
    if (stats.loading !== undefined) {
      const missing = stats.waiting_for ? `, waiting for ${stats.waiting_for}` : "";
      byId("measured").textContent = `Loading the model: ${percent(stats.loading)}${missing}`;
      return BUSY_MS;
    }
    const last = this._history.newest;
    const isFirst = last === undefined;
    const restarted = !isFirst && last.pid !== stats.pid;
    this._history.add(stats);
    const since = counted(Math.round(stats.uptime_s / 60), "minute");
    byId("measured").textContent = `${stats.role} ${stats.version}, up for ${since}`;
    if (restarted) {
      this._charts = null;
      this._onRestart();
    }
    this._charts ??= makeCharts(stats.role);
    for (const draw of this._charts) {
      draw(stats, this._history);
    }
    showPeers(stats);
    return isFirst || this.busy || stats.sessions.live > 0 ? BUSY_MS : IDLE_MS;
  }
}

/** Return functions that draw a snapshot, one for each chart of a role. */
function makeCharts(role) {
  const parent = byId("curves");
  parent.replaceChildren();
  const charts = [];
  const add = (id, title, draw) => {
    const chart = new Chart(parent, id, title);
    charts.push((stats, history) => draw(chart, stats, history));
  };
  add("curve-rate", "Tokens per second", drawRate);
  if (role === "verifier") {
    add("curve-acceptance", "Accepted by position", drawPositions);
  } else {
    add("curve-acceptance", "Drafts accepted", drawAccepted);
  }
  add("curve-draft-n", "Drafts per step (draft_n)", drawDrafts);
  if (role === "verifier") {
    add("curve-steps", "Step time by rows", drawSteps);
  } else {
    add("curve-steps", "Time per draft", drawDraftTime);
  }
  add("curve-round-trip", "Round trip", drawRoundTrip);
  add("curve-sessions", "Sessions", drawSessions);
  return charts;
}

function overTime(history) {
  const [first, last] = history.range;
  const seconds = Math.round(last - first);
  const ago = seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
  return { ends: [`${ago} ago`, "now"], range: [first, last] };
}

function lastOf(points) {
  return points[points.length - 1]?.[1] ?? null;
}

function drawRate(chart, _, history) {
  const rate = history.rates("tokens");
  const plain = history.rates("plain");
  const now = lastOf(rate);
  const series = [{ name: "measured", points: rate }];
  if (lastOf(plain) !== null || plain.some(([, y]) => y !== null)) {
    series.push({ name: "steps without drafts", points: plain, mark: "plain" });
  }
  chart.lines(now === null ? "" : short(now), series, overTime(history));
}

function drawPositions(chart, _, history) {
  const { shares, span } = history.acceptance();
  const first = shares[0];
  const value = first ? `${percent(first.share)} of the first, ${span}` : "no drafts yet";
  chart.bars(value, shares);
}

function drawAccepted(chart, _, history) {
  const points = history.rates("accepted");
  const now = lastOf(points);
  const inPercent = points.map(([x, y]) => [x, y === null ? null : 100 * y]);
  const drawn = { ...overTime(history), unit: " %" };
  chart.lines(now === null ? "" : percent(now), [{ points: inPercent }], drawn);
}

function drawDrafts(chart, stats, history) {
  const points = history.points(({ draft_n }) => draft_n);
  chart.lines(String(stats.draft_n ?? ""), [{ points }], overTime(history));
}

function drawSteps(chart, stats) {
  const series = [];
  let last = 1;
  for (const [context, table] of Object.entries(stats.steps_ms).slice(0, MOST_LINES)) {
    const points = Object.entries(table).map(([rows, ms]) => [Number(rows), ms]);
    last = Math.max(last, ...points.map(([rows]) => rows));
    series.push({ name: `context from ${context}`, points });
  }
  const one = stats.one_token_step_ms;
  const value = one ? `${short(one)} ms for one` : "";
  const range = [1, Math.max(last, 2)];
  chart.lines(value, series, { ends: ["1 row", `${range[1]} rows`], range });
}

function drawDraftTime(chart, stats, history) {
  const points = history.points(({ draft_interval_ms }) => draft_interval_ms);
  chart.lines(inMs(stats.draft_interval_ms), [{ points }], overTime(history));
}

function drawRoundTrip(chart, stats, history) {
  const series = othersOf(stats).slice(0, MOST_LINES).map((other) => {
    const same = (peer) => peer.address === other.address && peer.number === other.number;
    const points = history.points((then) => othersOf(then).find(same)?.round_trip_ms.p50);
    return { name: other.drafter ?? other.name ?? other.address, points };
  });
  const now = othersOf(stats)[0]?.round_trip_ms.p50;
  chart.lines(inMs(now), series, overTime(history));
}

function drawSessions(chart, stats, history) {
  const waiting = ({ sessions }) => sessions.queued ?? sessions.interrupted;
  const series = [
    { name: "live", points: history.points(({ sessions }) => sessions.live) },
    { name: "waiting", points: history.points(waiting) },
  ];
  if (stats.role === "verifier") {
    series.push({ name: "drafters", points: history.points(({ peers }) => peers.length) });
  }
  const { live, max_sessions } = stats.sessions;
  chart.lines(`${live} of ${max_sessions}`, series, overTime(history));
}

function inMs(value) {
  return value === null || value === undefined ? "" : `${short(value)} ms`;
}

/** Return a verifier's drafters, or a drafter's verifiers. */
function othersOf(stats) {
  return stats.peers ?? stats.verifiers ?? [];
}

function showPeers(stats) {
  const others = othersOf(stats);
  const isVerifier = stats.role === "verifier";
  const parts = [made("h3", "", isVerifier ? "Drafters" : "Verifiers")];
  if (stats.no_drafts) {
    parts.push(made("p", "quiet", `Nothing is drafted now: ${reasonInWords(stats.no_drafts)}`));
  }
  if (others.length === 0) {
    parts.push(made("p", "quiet", "None is connected."));
  }
  const list = made("ul", "peers");
  for (const other of others) {
    const item = made("li");
    item.append(made("strong", "", other.drafter ?? other.name ?? other.address));
    item.append(made("span", "quiet", factsOf(other).join(", ")));
    list.append(item);
  }
  byId("peers").replaceChildren(...parts, list);
}

function factsOf(other) {
  const facts = [other.model, other.engine].filter(Boolean);
  if (typeof other.acceptance_rate === "number") {
    facts.push(`${percent(other.acceptance_rate)} accepted`);
  }
  if (other.round_trip_ms?.p50) {
    facts.push(`round trip ${inMs(other.round_trip_ms.p50)}`);
  }
  if (typeof other.busy === "number") {
    facts.push(`${percent(other.busy)} busy`);
  }
  if (other.refusal) {
    facts.push(`refused: ${reasonInWords(other.refusal)}`);
  } else if (other.no_drafts) {
    facts.push(`no drafts: ${reasonInWords(other.no_drafts)}`);
  }
  return facts;
}
