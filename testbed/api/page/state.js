// Queries on a state in the API's form.

import { counted, delay, FIELDS, rate, seconds, share, shown, size } from "./units.js";

/** The site of a member: its host's, or the site in its name if the host is gone. */
export const siteOf = (state, member) => state.hosts?.[member]?.site ?? member.replace(/-w\d+$/, "");

/** The plans that have been in force, the newest last: epoch, plan, `since` when (null: from the begin), and why. */
export function plansInForce(state) {
  const told = ([epoch, { plan, swap }]) => ({
    epoch: Number(epoch),
    plan,
    since: swap?.active_s ?? null,
    why: swap?.reason ?? "",
  });
  return Object.entries(state.plans ?? {})
    .filter(([, { plan, swap }]) => plan && (!swap || swap.active_s != null))
    .map(told)
    .sort((one, other) => one.epoch - other.epoch);
}

/** The plan in force; undefined if there is none. */
export const planInForce = state => plansInForce(state).at(-1);

/** What the plan in force sends over a link, tree by tree: sums towards the root, and means back from it. */
export function plannedOver(state, name) {
  const { trees = [], groups = [] } = planInForce(state)?.plan ?? {};
  const over = ends => ends.map(end => siteOf(state, end)).join("->") === name;
  const inWords = (tree, where) => {
    const up = Object.entries(tree.reduce).filter(over).length;
    const down = Object.entries(tree.broadcast).filter(([child, parent]) => over([parent, child])).length;
    if (!up && !down) return [];
    const ways = [
      up && `${counted(up, "edge")} to ${tree.root}`,
      down && `${counted(down, "edge")} from ${up ? "it" : tree.root}`,
    ];
    const part = tree.share < 1 ? ` (${share(tree.share)} of the model)` : "";
    return [where + ways.filter(Boolean).join(", ") + part];
  };
  return [
    ...trees.flatMap(tree => inWords(tree, "")),
    ...groups.flatMap(group => group.trees.flatMap(tree => inWords(tree, "in a group "))),
  ];
}

/**
 * The fields of a link whose values are in force over its file or trace, each with who changed it: "by hand" or "by an
 * event". A record of an earlier version does not say which fields: then there is one, "".
 */
export function changesOf(state, name) {
  const { changed } = state.links[name], by = {};
  let before = {}, newest = "hand"; // a network that has been up for long no longer has its oldest events
  for (const event of Object.values(state.events ?? {})) {
    if (event.kind !== "change" || event.target !== name) continue;
    newest = event.by;
    for (const [key, value] of Object.entries(event.changed ?? {})) {
      if (value !== before[key]) by[key] = { who: newest };
    }
    before = event.changed ?? {};
  }
  const said = who => who === "hand" ? "by hand" : "by an event";
  if (changed === null) return [["", said(newest)]];
  const fields = Object.entries(FIELDS).filter(([, key]) => changed[key] != null);
  return fields.map(([field, key]) => [field, said((by[key] ?? { who: newest }).who)]);
}

/** The names of a discipline's values in topologies, where they differ from the API's. */
const IN_FILES = { least: "min", most: "max" };

/** A link's queue: its size, and what drops packets of it; "" of a recording, which does not say. */
export function queueOf({ queue_bytes, discipline }) {
  if (!discipline) return "";
  const { name, ...values } = discipline;
  const told = Object.entries(values).map(([key, value]) =>
    key.endsWith("_s") ? `${key.slice(0, -2)} ${delay(value)}` : `${IN_FILES[key] ?? key} ${share(value)}`);
  return `${size(queue_bytes)}, ${[name, told.join(", ")].filter(Boolean).join(": ")}`;
}

/** The values of background traffic, as people read them. */
const OF_TRAFFIC = {
  rate: ({ bps, share: part }) => `rate ${part ? share(part) : rate(bps)}`,
  busy: s => `busy ${seconds(s)}`,
  idle: s => `idle ${seconds(s)}`,
  size: bytes => `size ${size(bytes)}`,
  every: s => `every ${seconds(s)}`,
  file: name => name,
  scale: factor => factor === 1 ? "" : `times ${factor}`,
};

/** The background traffic that a link's file declares, one text each. */
export function trafficOf({ declared_traffic = [] }) {
  const toldOf = values => Object.entries(OF_TRAFFIC).map(([key, told]) => key in values ? told(values[key]) : "");
  return declared_traffic.flatMap(entry => Object.entries(entry))
    .map(([kind, values]) => `${kind}: ${toldOf(values).filter(Boolean).join(", ")}`);
}

/** An event in words. */
export const inWords = event => `${event.kind} ${event.target}${event.by ? ", by hand" : ""}`;

/** The figures of an event: the rates of a step, or the values that a change has left in force. */
export function moreOf({ before_bps, after_bps, changed }) {
  if (after_bps != null) return `by its trace: ${rate(before_bps)} to ${rate(after_bps)}`;
  const values = Object.entries(FIELDS).filter(([, key]) => changed?.[key] != null);
  return values.map(([field, key]) => `${field} ${shown[field](changed[key])}`).join(", ");
}

/** When the replay began, in Unix seconds, by a state at `now`. Its own time stands still while it is paused. */
export function beginOf({ network, events = {} }, now) {
  let paused_s = 0, since = null;
  for (const { kind, at_s } of Object.values(events)) {
    if (kind === "pause") since ??= at_s;
    if (kind !== "resume" || since === null) continue;
    paused_s += at_s - since;
    since = null;
  }
  if (since !== null) paused_s += now - since;
  return now - network.replay.elapsed_s - paused_s;
}
