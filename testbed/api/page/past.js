// What this page saw of what runs, so that one can go back in it and return to now: a state a second, for an hour.

const STEP_S = 1, MOST = 3600;
const SECTIONS = ["network", "sites", "hosts", "links", "traffic", "training"];
const at = id => document.getElementById(id);

/** Calls `show(state, moment)` with what was, when the scrubber is moved, and with what is, when it is back at its end. */
export class Past {
  #kept = [];
  #newest = null; // the state that is followed, which changes in place
  #looked = null; // the moment that is looked at; null is now
  #zero = 0;

  constructor(show) {
    this.show = show;
    at("play").hidden = at("speed").parentElement.hidden = true;
    at("now").onclick = () => this.#look(null);
    at("scrubber").oninput = event => this.#look(Number(event.target.value) < Number(event.target.max) ? this.#zero + Number(event.target.value) : null);
  }

  get looking() { return this.#looked !== null; }

  /** The state at a moment, in Unix seconds; times are shown since `zero`. */
  follow(state, now, zero) {
    this.#zero = zero;
    this.#newest = state;
    if (!this.#kept.length || now - this.#kept.at(-1).at_s >= STEP_S) {
      this.#kept.push({ at_s: now, ...Object.fromEntries(SECTIONS.map(name => [name, { ...state[name] }])) });
      if (this.#kept.length > MOST) this.#kept.shift();
      at("player").hidden = this.#kept.length < 2;
      at("scrubber").min = Math.ceil(this.#kept[0].at_s - zero);
      at("scrubber").max = Math.ceil(now - zero);
      if (!this.looking) this.#told(now);
    }
    if (!this.looking) this.show(state, now);
  }

  #look(moment) {
    const now = this.#kept.at(-1).at_s;
    this.#looked = moment;
    this.#told(moment ?? now);
    if (moment === null) this.show(this.#newest, now);
    else this.#showKept(moment);
  }

  /** Twice, the second before it first: what a link carried is told by the difference. */
  #showKept(moment) {
    const place = Math.max(this.#kept.findLastIndex(kept => kept.at_s <= moment), 0);
    for (const kept of this.#kept.slice(Math.max(place - 1, 0), place + 1)) this.show(this.#whole(kept), kept.at_s);
  }

  #whole(kept) {
    const until = (section, of) => Object.fromEntries(Object.entries(this.#newest[section] ?? {}).filter(([, one]) => of(one) <= kept.at_s));
    return {
      ...kept, events: until("events", event => event.at_s), decisions: until("decisions", decision => decision.at_s),
      rounds: until("rounds", round => round.finished_s), plans: until("plans", plan => plan.swap?.active_s ?? (plan.swap ? Infinity : 0)),
    };
  }

  #told(moment) {
    const scrubber = at("scrubber");
    scrubber.value = this.looking ? moment - this.#zero : scrubber.max;
    at("moment").textContent = this.looking ? `${(moment - this.#zero).toFixed(0)} s` : "now";
    scrubber.setAttribute("aria-valuetext", at("moment").textContent);
    at("now").hidden = !this.looking;
  }
}
