// The selected links: their configured, measured and planned values, changes to them, and undo.

import { ask } from "./api.js";
import { LinkChart } from "./charts.js";
import { at, element } from "./dom.js";
import { changesOf, plannedOver, planInForce, queueOf, siteOf, trafficOf } from "./state.js";
import { carried } from "./use.js";
import { delay, FIELDS, rate, share, shown, written } from "./units.js";

/** The page's editor; `say(text)` shows an error, `redraw()` is called when the selection changes. */
export class Editor {
  #chosen = new Set();
  #undone = []; // patches that undo the changes made on this page, the newest last
  #chart = new LinkChart();

  constructor(say, redraw) {
    this.say = say;
    this.redraw = redraw;
    for (const field of Object.keys(FIELDS)) {
      const label = at("values").appendChild(element("label", field));
      label.append(Object.assign(element("input"), { name: field, autocomplete: "off", spellcheck: false }));
    }
    at("editor").onsubmit = event => {
      event.preventDefault();
      this.#submit();
    };
    at("restore").onclick = () => this.#change(Object.fromEntries(Object.keys(FIELDS).map(field => [field, null])));
    at("down").onclick = () => this.#change({ up: at("down").dataset.up === "true" });
    at("undo").onclick = () => this.undo();
    document.addEventListener("keydown", event => this.#pressed(event));
  }

  has = name => this.#chosen.has(name);

  choose = (name, more) => {
    const only = this.#chosen.size === 1 && this.#chosen.has(name);
    if (!more) this.#chosen.clear();
    if (more && this.#chosen.has(name)) this.#chosen.delete(name);
    else if (!only) this.#chosen.add(name);
    this.#empty();
    this.redraw();
  };

  clear() {
    this.#chosen.clear();
    this.redraw();
  }

  /** `readOnly` while the page shows the past; `over` once nothing can be changed any more, which hides the inputs. */
  show(state, readOnly, over) {
    this.state = state;
    const links = state.links ?? {};
    for (const name of this.#chosen) if (!links[name]) this.#chosen.delete(name);
    at("editor").hidden = !this.#chosen.size;
    at("none-chosen").hidden = Boolean(this.#chosen.size);
    at("changing").hidden = at("can-change").hidden = over;
    if (!this.#chosen.size) return;
    const names = [...this.#chosen], first = links[names[0]], alone = names.length === 1;
    at("chosen").textContent = alone ? names[0] : `${names.length} links`;
    const told = alone ? toldOf(state, names[0], first) : [["selected", names.join(", ")]];
    at("said").replaceChildren(...told.flatMap(([term, text]) => [element("dt", term), element("dd", text)]));
    for (const [field, key] of Object.entries(FIELDS)) {
      at("values").querySelector(`[name=${field}]`).placeholder = alone ? shown[field](first[key]) : "";
    }
    at("down").textContent = first.up ? "Take down" : "Bring up";
    at("down").dataset.up = !first.up;
    for (const control of at("editor").elements) control.disabled = readOnly;
  }

  /** Draw the traffic and rate of the selected link: `historyOf(name)` holds times, and bit/s of both. */
  draw(historyOf) {
    const [name] = this.#chosen;
    this.#chart.show(this.#chosen.size === 1 ? historyOf(name) : null);
  }

  async undo() {
    const patches = this.#undone.pop();
    at("undo").disabled = !this.#undone.length;
    if (!patches) return;
    try {
      await ask("PATCH", "/links", patches);
      this.say("");
    } catch (error) {
      if (error instanceof TypeError) this.#undone.push(patches); // fetch's: no answer came
      at("undo").disabled = !this.#undone.length;
      this.say(`Not undone: ${error.message}`);
    }
  }

  #pressed(event) {
    const undoes = (event.ctrlKey || event.metaKey) && event.key === "z" && !(event.target instanceof HTMLInputElement);
    if (event.key === "Escape") this.clear();
    if (!undoes) return;
    event.preventDefault();
    this.undo();
  }

  #submit() {
    const given = [...new FormData(at("editor"))].filter(([, text]) => text.trim());
    if (given.length) this.#change(Object.fromEntries(given));
  }

  #empty() {
    for (const input of at("values").querySelectorAll("input")) input.value = "";
  }

  async #change(patch) {
    const before = Object.fromEntries([...this.#chosen].map(name => [name, this.state.links[name]]));
    const patches = mapped(before, link => ({ ...patch, tag: link.tag }));
    try {
      const after = await ask("PATCH", "/links", patches);
      this.#undone.push(mapped(after, (link, name) => ({ ...takingBack(before[name], patch), tag: link.tag })));
      at("undo").disabled = false;
      this.#empty();
      this.say("");
    } catch (error) {
      this.say(error.message);
    }
  }
}

/** The configured, measured and planned values of one link. */
function toldOf(state, name, link) {
  const estimate = estimateOf(state, name);
  const edges = plannedOver(state, name);
  const queue = queueOf(link), traffic = trafficOf(link);
  const planned = ["planned", edges.length ? edges.join("; ") : "the plan has no edge between these sites"];
  return [
    ["configured", link.up ? askedOf(state, name, link) : "down"],
    ...queue ? [["queue", queue]] : [],
    ...traffic.length ? [["background traffic", traffic.join("; ")]] : [],
    ["measured", `traffic ${rate(carried(name))}${estimate ? `; estimated rate ${rate(estimate.rate_bps)}` : ""}`],
    ...planInForce(state) ? [planned] : [],
  ];
}

function askedOf(state, name, link) {
  const moved = trafficOf(link).length ? "trace or background traffic" : "trace";
  const source = link.replayed === null ? [] : [`by its ${link.replayed ? moved : "file"}`];
  const changes = d3.group(changesOf(state, name), ([, by]) => by);
  const changed = [...changes].map(([by, fields]) => {
    const named = fields.map(([field]) => field).filter(Boolean);
    return named.length ? `${by}: ${named.join(", ")}` : `changed ${by}`;
  });
  const by = [...source, ...changed].join(", and ");
  return `${rate(link.rate_bps)}, ${delay(link.delay_s)}, loss ${share(link.loss)} ${by}`;
}

const betweenSites = (state, ends) => ends.map(end => siteOf(state, end)).join("->");

/** The controller's estimate of a link; undefined if there is none. */
function estimateOf(state, name) {
  const known = Object.entries(state.training?.estimates ?? {});
  return known.find(([edge]) => edge === name || betweenSites(state, edge.split("->")) === name)?.[1];
}

/** The patch that restores the values of a link that another patch changes. */
function takingBack(link, patch) {
  return mapped(patch, (_, field) => {
    if (field === "up") return link.up;
    const value = link.changed[FIELDS[field]];
    return value == null ? null : written[field](value);
  });
}

/** Map the values of an object. */
const mapped = (of, other) => Object.fromEntries(Object.entries(of).map(([key, value]) => [key, other(value, key)]));
