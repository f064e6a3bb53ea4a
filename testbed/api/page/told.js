// What is told in words: the verdict, workers, decisions, the log.

import { seconds, share } from "./units.js";

const at = id => document.getElementById(id);
const element = (tag, text, kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });

export function tell(state, zero) {
  const by = Object.values(state.events ?? {}).filter(event => event.by);
  const verdict = state.verdict ?? (state.network?.kind === "run" && by.length ? { verdict: "suspect", reasons: [`changed by hand, ${by.length} times`] } : null);
  if (verdict) at("verdict").replaceChildren(element("strong", `verdict: ${verdict.verdict}`, verdict.verdict), ...verdict.reasons.map(reason => element("p", reason)));
  workers(state);
  list("log", [
    ...Object.values(state.events ?? {}).map(event => [event.at_s, `${event.kind} ${event.target}${event.by ? ", by hand" : ""}`]),
    ...Object.values(state.plans ?? {}).filter(one => one.swap?.active_s).map(one => [one.swap.active_s, `plan ${one.swap.epoch} of ${one.swap.policy} in force: ${one.swap.reason}`]),
  ], zero);
  list("decisions", Object.values(state.decisions ?? {}).map(decision => [decision.at_s, explain(decision, state)]), zero);
}

/** Why it was taken, what it promised, and what came. */
function explain(decision, state) {
  const promised = decision.proposed_s != null && decision.current_s ? `, promised ${seconds(decision.proposed_s)} a round for ${seconds(decision.current_s)} (${share(1 - decision.proposed_s / decision.current_s)} less)` : "";
  if (!decision.adopted) return `${decision.policy}: stays; ${decision.why}${promised}`;
  const rounds = Object.values(state.rounds ?? {}), place = rounds.findIndex(round => round.epoch === decision.epoch);
  const median = list => list.length ? d3.median(list, round => round.seconds) : null;
  const came = place > 0 ? `, came ${seconds(median(rounds.slice(place, place + 8)))} for ${seconds(median(rounds.slice(Math.max(0, place - 8), place)))}` : "";
  return `${decision.policy}: plan ${decision.epoch}; ${decision.why}${promised}${came}`;
}

function workers(state) {
  const hosts = Object.entries(state.hosts ?? {}).filter(([, host]) => host.kind === "worker");
  const parts = state.training?.workers ?? {};
  at("parts").hidden = !Object.keys(parts).length;
  const longest = Math.max(1e-9, ...Object.values(parts).map(part => part.compute_s + part.wait_s + part.send_s));
  d3.select("#workers tbody").selectAll("tr").data(hosts, ([name]) => name).join(enter => {
    const row = enter.append("tr");
    row.append("td"); row.append("td"); row.append("td").append("span").attr("class", "bar");
    return row;
  }).each(([name, host], place, nodes) => {
    const [first, second, third] = nodes[place].cells, part = parts[name];
    first.textContent = host.running === false ? `${name} (ended)` : name;
    second.textContent = host.address ?? "";
    if (!part) return;
    const bar = third.firstChild;
    bar.title = `compute ${seconds(part.compute_s)}, wait ${seconds(part.wait_s)}, send ${seconds(part.send_s)}`;
    bar.replaceChildren(...["compute", "wait", "send"].map(kind => {
      const piece = element("i", "", kind);
      piece.style.width = `${100 * part[`${kind}_s`] / longest}%`;
      return piece;
    }));
  });
}

const SHOWN = 200;
const written = {};

function list(id, entries, zero) {
  entries.sort((one, other) => other[0] - one[0]);
  const texts = entries.slice(0, SHOWN).map(([at_s, text]) => `${(at_s - zero).toFixed(1)} s  ${text}`);
  const key = texts.join("\n");
  if (written[id] === key) return;
  written[id] = key;
  at(id).replaceChildren(...texts.map(text => element("li", text)));
}
