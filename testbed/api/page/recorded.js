// Plays a run that is over: computes the state at any of its moments from the recording.

import { at } from "./dom.js";

/** The number of last rounds that are searched for the newest metrics. */
const LAST_ROUNDS = 50;
/** The milliseconds that a frame takes at most for playing: none come while the tab is hidden. */
const MOST_FRAME_MS = 200;

/** The index of the last entry of a list, ascending by `of`, that is not above `value`; -1 if all are. */
const last = (list, value, of = one => one) => d3.bisector(of).right(list, value) - 1;

const upTo = (list, value, of) => list.slice(0, last(list, value, of) + 1);

/** The state `seconds` after training began; `recording` is the API's. */
function stateAt(recording, seconds) {
  const second = last(recording.traffic_s, seconds);
  const { links, traffic } = linksAt(recording, seconds, second);
  const rounds = upTo(recording.rounds, seconds, round => round.finished_s);
  const plans = Object.entries(recording.plans).filter(([, plan]) => plan.active_s <= seconds);
  return {
    network: recording.network,
    sites: recording.sites,
    hosts: recording.hosts,
    links,
    traffic,
    traffic_at_s: recording.traffic_s[second],
    plans: Object.fromEntries(plans.map(([epoch, plan]) => [epoch, asStreamed(plan)])),
    events: upTo(recording.events, seconds, event => event.at_s),
    decisions: upTo(recording.decisions, seconds, decision => decision.at_s),
    rounds,
    curves: upTo(recording.curves, seconds, record => record.at_s),
    training: recording.rounds.length ? trainingAt(recording, rounds) : {},
    verdict: recording.verdict,
  };
}

/** A plan whose swap is timed since the recording's begin. */
const asStreamed = ({ plan, swap, active_s }) => ({ plan, swap: swap && { ...swap, active_s } });

function linksAt(recording, seconds, second) {
  const links = {}, traffic = {};
  const { links: traced } = recording.traced[Math.max(last(recording.traced, seconds, one => one.at_s), 0)];
  for (const [name, link] of Object.entries(recording.links)) {
    const step = last(link.at_s, seconds);
    if (step < 0 || !link.there[step]) continue;
    const [source, target] = name.split("->");
    links[name] = {
      source,
      target,
      rate_bps: link.rate_bps[step],
      delay_s: link.delay_s[step],
      loss: link.loss[step],
      jitter_s: 0,
      up: link.up[step],
      replayed: traced && traced.includes(name),
      changed: changedAt(recording.changes[name] ?? [], seconds),
    };
    const bytes = recording.bytes[name];
    if (bytes && second >= 0) traffic[name] = { bytes: bytes[second] ?? 0 };
  }
  return { links, traffic };
}

/** The values changed over a link's file or trace by a moment; null if the record lacks the new values. */
function changedAt(changes, seconds) {
  const place = last(changes, seconds, change => change.at_s);
  return place < 0 ? {} : changes[place].changed;
}

function trainingAt(recording, rounds) {
  const newest = rounds.at(-1);
  return {
    round: newest?.round,
    rounds: recording.asked ?? recording.rounds.length,
    metrics: Object.assign({}, ...rounds.slice(-LAST_ROUNDS).map(round => round.metrics)),
    workers: spentIn(newest),
  };
}

/** How each member spent its time of a round. */
function spentIn(round) {
  const workers = Object.entries(round?.workers ?? {});
  const named = ([name, [compute_s, wait_s, send_s]]) => [name, { compute_s, wait_s, send_s }];
  return Object.fromEntries(workers.map(named));
}

/** Moves through a recording by the page's controls; calls `show(state, seconds)`. */
export class Player {
  #passed; // times, and bit/s over all links, of the whole recording
  #now = 0;
  #playing = false;
  #before = 0; // the last frame, in milliseconds

  constructor(recording, show) {
    this.recording = recording;
    this.show = show;
    this.#passed = passedOverAll(recording);
    for (const id of ["player", "play", "speed-label"]) at(id).hidden = false;
    at("scrubber").max = Math.ceil(10 * recording.seconds) / 10; // the scrubber rounds its maximum down to a whole step
    at("play").onclick = () => this.#toggle();
    at("scrubber").oninput = () => this.goTo(Number(at("scrubber").value));
  }

  get end() { return this.recording.seconds; }

  /** The traffic over all links up to the moment shown. */
  get passed() {
    const until = last(this.#passed[0], this.#now) + 1;
    return this.#passed.map(list => list.slice(0, until));
  }

  /** Times, traffic and rate of a link, of the whole recording. */
  historyOf = name => {
    const { traffic_s: times, bytes, links } = this.recording, link = links[name];
    const rates = times.map(second => {
      const step = last(link.at_s, second);
      return step >= 0 && link.there[step] && link.up[step] ? link.rate_bps[step] : null;
    });
    return [times, bytes[name] ? perSecond(times, bytes[name]) : times.map(() => null), rates];
  };

  /** Go to a moment, showing the second before it first, since traffic is the difference of two counters. */
  goTo = seconds => {
    const { traffic_s: times } = this.recording, before = times[last(times, seconds) - 1];
    if (before !== undefined) this.show(stateAt(this.recording, before), before);
    this.#goOn(seconds);
  };

  #goOn = seconds => {
    this.#now = Math.min(Math.max(seconds, 0), this.end);
    at("scrubber").value = this.#now;
    at("moment").textContent = `${this.#now.toFixed(1)} s of ${this.end.toFixed(0)} s`;
    at("scrubber").setAttribute("aria-valuetext", at("moment").textContent);
    this.show(stateAt(this.recording, this.#now), this.#now);
  };

  #toggle() {
    this.#playing = !this.#playing;
    at("play").textContent = this.#playing ? "Pause" : "Play";
    if (!this.#playing) return;
    if (this.#now >= this.end) this.#now = 0;
    requestAnimationFrame(time => {
      this.#before = time;
      this.#step(time);
    });
  }

  #step(time) {
    if (!this.#playing) return;
    const passed = Math.min(time - this.#before, MOST_FRAME_MS);
    this.#goOn(this.#now + Number(at("speed").value) * passed / 1000);
    this.#before = time;
    if (this.#now >= this.end) this.#toggle();
    else requestAnimationFrame(next => this.#step(next));
  }
}

/** Bit/s in the second before each time; null where the counter began again at 0. */
function perSecond(times, bytes) {
  return times.map((time, place) => {
    const grew = place > 0 && bytes[place] != null && bytes[place - 1] != null ? bytes[place] - bytes[place - 1] : -1;
    return grew < 0 ? null : 8 * grew / (time - times[place - 1]);
  });
}

function passedOverAll({ traffic_s: times, bytes }) {
  const sums = times.map(() => 0);
  for (const counted of Object.values(bytes)) {
    perSecond(times, counted).forEach((bps, place) => { sums[place] += bps ?? 0; });
  }
  return [times, sums];
}
