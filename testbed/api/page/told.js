// The lists of the page: the verdict, workers, decisions and events.

import { figure } from "./charts.js";
import { at, element, write } from "./dom.js";
import { inWords, moreOf, plansInForce } from "./state.js";
import { seconds } from "./units.js";

const SHOWN = 200;

/** The number of a verdict's reasons that are shown unfolded. */
const REASONS = 2;

/** The number of rounds before and after a swap, at most, whose medians are compared. */
const ROUNDS = 8;

export function tell(state, zero) {
  tellVerdict(state);
  tellWorkers(state);
  list("log", logOf(state), zero, "No events yet.");
  at("decided").hidden = !state.training?.policy && !Object.keys(state.decisions ?? {}).length;
  const rounds = wholeRounds(Object.values(state.rounds ?? {}));
  const decisions = Object.values(state.decisions ?? {}).map(decision => explained(decision, rounds));
  list("decisions", withoutRepeats(decisions), zero, "No decisions yet.");
}

function tellVerdict(state) {
  const byHand = Object.values(state.events ?? {}).filter(event => event.by).length;
  const times = byHand === 1 ? "once" : `${byHand} times`;
  const soFar = { verdict: "suspect", reasons: [`changed by hand ${times}: the files alone can't reproduce it`] };
  const verdict = state.verdict ?? (state.network?.kind === "run" && byHand ? soFar : null);
  const key = JSON.stringify(verdict);
  if (!verdict || at("verdict").dataset.told === key) return;
  at("verdict").dataset.told = key;
  at("verdict").className = verdict.verdict;
  const reasons = verdict.reasons.map(reason => element("p", reason));
  const more = reasons.splice(REASONS);
  at("verdict").replaceChildren(element("strong", `verdict: ${verdict.verdict}`), ...reasons);
  if (!more.length) return;
  const folded = at("verdict").appendChild(element("details"));
  folded.append(element("summary", `${more.length} more`), ...more);
}

/** The events, and the plans that came into force. */
function logOf(state) {
  const events = Object.values(state.events ?? {}).map(event => ({
    at_s: event.at_s,
    text: inWords(event),
    more: moreOf(event),
    kind: event.by ? "hand" : "",
  }));
  const plans = plansInForce(state).filter(({ since }) => since !== null).map(({ epoch, plan, since, why }) => ({
    at_s: since,
    text: `plan ${epoch} (${plan.policy}) in force`,
    more: why,
    kind: "swap",
  }));
  return [...events, ...plans];
}

/** Merge equal decisions that follow each other into the newest one, with their number. */
function withoutRepeats(decisions) {
  const kept = [];
  for (const one of decisions) {
    const count = kept.at(-1)?.text === one.text ? kept.pop().count + 1 : 1;
    kept.push({ ...one, count });
  }
  return kept.map(one => one.count > 1 ? { ...one, text: `${one.text}, ${one.count} times` } : one);
}

/** A decision with its reason, its prediction and the rounds measured after it. */
function explained(decision, rounds) {
  const { at_s, policy, adopted, why, epoch } = decision;
  const promised = adopted ? predicted(decision) : "";
  const came = adopted ? whatCame(epoch, rounds) : "";
  return {
    at_s,
    text: adopted ? `${policy}: plan ${epoch} adopted` : `${policy}: plan kept`,
    more: [why, promised, came].filter(Boolean).join("; "),
    kind: adopted ? "swap" : "",
  };
}

/** The prediction of a decision, in seconds of whole rounds or by the policy's own measure; "" if there is none. */
function predicted({ proposed_s, current_s, own_measure }) {
  if (proposed_s == null || !current_s) return "";
  return own_measure
    ? `predicted ${figure(proposed_s)} instead of ${figure(current_s)} by the policy's own measure`
    : `predicted ${seconds(proposed_s)} per whole round instead of ${seconds(current_s)}`;
}

/** The whole rounds, and the place of the first one of each epoch; predictions are of whole rounds too. */
function wholeRounds(rounds) {
  const whole = d3.pairs(rounds, (one, next) => ({ epoch: next.epoch, seconds: next.finished_s - one.finished_s }));
  const firsts = new Map(whole.map(({ epoch }, place) => [epoch, place]).reverse()); // the last entry of a key counts
  return { whole, firsts };
}

/** The median whole round of a plan, and of the plan before it; of each the ROUNDS next to the swap. */
function whatCame(epoch, { whole, firsts }) {
  const first = firsts.get(epoch) ?? 0;
  if (first === 0) return "";
  const median = list => seconds(d3.median(list, round => round.seconds));
  const those = (from, to, of) => whole.slice(Math.max(0, from), to).filter(round => round.epoch === of);
  const before = those(first - ROUNDS, first, whole[first - 1].epoch), after = those(first, first + ROUNDS, epoch);
  return `measured ${median(after)}, before ${median(before)}`;
}

function tellWorkers(state) {
  const hosts = Object.entries(state.hosts ?? {}).filter(([, host]) => host.kind === "worker");
  const parts = state.training?.workers ?? {};
  const idle = !Object.keys(parts).length;
  at("parts").hidden = idle;
  at("workers").classList.toggle("idle", idle);
  at("workers").classList.toggle("unaddressed", hosts.every(([, host]) => !host.address));
  const longest = Math.max(1e-9, ...Object.values(parts).map(whole));
  d3.select("#workers tbody").selectAll("tr").data(hosts, ([name]) => name).join(enter => {
    const row = enter.append("tr");
    for (let cell = 0; cell < 3; cell++) row.append("td");
    return row;
  }).each(([name, host], place, rows) => tellWorker(rows[place], name, host, parts[name], longest));
}

const whole = part => part.compute_s + part.wait_s + part.send_s;

function tellWorker(row, name, host, part, longest) {
  write(row.cells[0], host.running === false ? `${name} (ended)` : name);
  write(row.cells[1], host.address ?? "");
  if (!part) return row.cells[2].replaceChildren();
  const bar = element("span", "", "bar");
  bar.title = `compute ${seconds(part.compute_s)}, wait ${seconds(part.wait_s)}, send ${seconds(part.send_s)}`;
  bar.setAttribute("role", "img"); // so that screen readers read its title
  for (const kind of ["compute", "wait", "send"]) {
    const piece = bar.appendChild(element("i", "", kind));
    piece.style.width = `${100 * part[`${kind}_s`] / longest}%`;
  }
  row.cells[2].replaceChildren(bar, ` ${seconds(whole(part))}`);
}

const told = {}; // the contents of each list

/** Show entries, the newest first: time, text and details; `empty` if there are none. */
function list(id, entries, zero, empty) {
  const newest = entries.toSorted((one, other) => other.at_s - one.at_s).slice(0, SHOWN);
  const key = JSON.stringify([newest, zero]);
  if (told[id] === key) return;
  told[id] = key;
  const items = newest.map(({ at_s, text, more, kind }) => {
    const item = element("li");
    const since = Math.max(at_s - zero, 0); // the first plan is decided on before training begins
    item.append(element("span", `${since.toFixed(1)} s`, "when"), element("span", text, kind));
    if (more) item.append(element("span", more, "more"));
    return item;
  });
  at(id).replaceChildren(...items.length ? items : [element("li", empty, "nothing")]);
}
