// The states that this page saw, one a second for an hour, so that the user can go back and return to now.

import { at } from "./dom.js";

const STEP_S = 1, MOST = 3600;
const SECTIONS = ["network", "sites", "hosts", "links", "traffic", "training"];

/** Bit/s over all links between two kept states. */
function between(before, kept) {
  const grew = Object.entries(kept.traffic).map(([name, { bytes }]) => bytes - (before.traffic[name]?.bytes ?? bytes));
  return 8 * d3.sum(grew, size => Math.max(size, 0)) / (kept.at_s - before.at_s);
}

/** Calls `show(state, moment)` with a past state when the scrubber is moved, and with the newest at its end. */
export class Past {
  #kept = [];
  #passed = [[], []]; // times since the begin, and bit/s over all links
  #newest = null; // the state that is followed, which changes in place
  #looked = null; // the moment that is shown; null is now
  #zero = 0;

  constructor(show) {
    this.show = show;
    at("now").onclick = () => this.#look(null);
    at("scrubber").oninput = () => {
      const { value, max } = at("scrubber");
      this.#look(Number(value) < Number(max) ? this.#zero + Number(value) : null);
    };
  }

  get looking() { return this.#looked !== null; }

  get newest() { return this.#newest; }

  /** The newest moment seen, in Unix seconds. */
  get end() { return this.#kept.at(-1)?.at_s ?? this.#zero; }

  /** The traffic over all links up to the moment shown. */
  get passed() {
    if (!this.looking) return this.#passed;
    const [times, values] = this.#passed, until = d3.bisectRight(times, this.#looked - this.#zero);
    return [times.slice(0, until), values.slice(0, until)];
  }

  /** Times, traffic and rate of a link, as far as this page saw them. */
  historyOf = name => {
    const times = [], carried = [], rates = [];
    this.#kept.forEach((kept, place) => {
      const before = this.#kept[place - 1];
      const link = kept.links[name], bytes = kept.traffic[name]?.bytes, earlier = before?.traffic[name]?.bytes;
      const grew = bytes != null && earlier != null && bytes >= earlier;
      times.push(kept.at_s - this.#zero);
      carried.push(grew ? 8 * (bytes - earlier) / (kept.at_s - before.at_s) : null);
      rates.push(link?.up ? link.rate_bps : null);
    });
    return [times, carried, rates];
  };

  /** The state at a moment, in Unix seconds; times are shown since `zero`. */
  follow(state, now, zero) {
    this.#zero = zero;
    this.#newest = state;
    if (!this.#kept.length || now - this.#kept.at(-1).at_s >= STEP_S) this.#keep(state, now);
    if (!this.looking) this.show(state, now);
  }

  #keep(state, now) {
    const before = this.#kept.at(-1);
    this.#kept.push({ at_s: now, ...Object.fromEntries(SECTIONS.map(name => [name, { ...state[name] }])) });
    this.#passed[0].push(now - this.#zero);
    this.#passed[1].push(before ? between(before, this.#kept.at(-1)) : 0);
    if (this.#kept.length > MOST) for (const list of [this.#kept, ...this.#passed]) list.shift();
    at("player").hidden = this.#kept.length < 2;
    at("scrubber").min = Math.ceil(this.#kept[0].at_s - this.#zero);
    at("scrubber").max = Math.ceil(now - this.#zero);
    if (!this.looking) this.#tell(now);
  }

  #look(moment) {
    this.#looked = moment;
    this.#tell(moment ?? this.end);
    if (moment === null) {
      this.#showKept(this.end); // traffic is the difference of two counters
      this.show(this.#newest, this.end);
    } else this.#showKept(moment);
  }

  /** Show the second before first, since traffic is the difference of two counters. */
  #showKept(moment) {
    const place = Math.max(this.#kept.findLastIndex(kept => kept.at_s <= moment), 0);
    for (const kept of this.#kept.slice(Math.max(place - 1, 0), place + 1)) this.show(this.#whole(kept), kept.at_s);
  }

  /** A kept state, with events, rounds and plans of that time. */
  #whole(kept) {
    const until = (section, momentOf) => {
      const entries = Object.entries(this.#newest[section] ?? {});
      return Object.fromEntries(entries.filter(([, one]) => momentOf(one) <= kept.at_s));
    };
    const activated = ({ swap }) => swap ? swap.active_s ?? Infinity : 0;
    return {
      ...kept,
      events: until("events", event => event.at_s),
      decisions: until("decisions", decision => decision.at_s),
      rounds: until("rounds", round => round.finished_s),
      plans: until("plans", activated),
      curves: until("curves", record => record.at_s),
    };
  }

  #tell(moment) {
    const scrubber = at("scrubber");
    scrubber.value = this.looking ? moment - this.#zero : scrubber.max;
    at("moment").textContent = this.looking ? `at ${(moment - this.#zero).toFixed(0)} s` : "now";
    scrubber.setAttribute("aria-valuetext", at("moment").textContent);
    at("now").hidden = !this.looking;
  }
}
