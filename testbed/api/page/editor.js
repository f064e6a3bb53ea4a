// The links that are chosen: what was asked, measured and planned; other values for them; and taking that back.

import { ask } from "./api.js";
import { siteOf } from "./network.js";
import { carried } from "./use.js";
import { rate, delay, share, written, FIELDS } from "./units.js";

const at = id => document.getElementById(id);

/** The page's editor; `say(text)` shows an error, `redraw()` is called when another link is chosen. */
export class Editor {
  #chosen = new Set();
  #undone = []; // what takes back the changes made on this page, the newest last

  constructor(say, redraw) {
    this.say = say;
    this.redraw = redraw;
    for (const field of Object.keys(FIELDS)) {
      const label = at("values").appendChild(document.createElement("label"));
      label.append(field, Object.assign(document.createElement("input"), { name: field, autocomplete: "off", spellcheck: false }));
    }
    at("editor").onsubmit = event => {
      event.preventDefault();
      const given = [...new FormData(at("editor"))].filter(([, text]) => text.trim());
      if (given.length) this.#change(Object.fromEntries(given));
    };
    at("restore").onclick = () => this.#change(Object.fromEntries(Object.keys(FIELDS).map(field => [field, null])));
    at("down").onclick = () => this.#change({ up: at("down").dataset.up === "true" });
    at("links").parentElement.onscroll = () => this.list();
    at("undo").onclick = () => this.undo();
    document.addEventListener("keydown", event => {
      if (event.key === "Escape") this.clear();
      if ((event.ctrlKey || event.metaKey) && event.key === "z" && !(event.target instanceof HTMLInputElement)) { event.preventDefault(); this.undo(); }
    });
  }

  has = name => this.#chosen.has(name);

  choose = (name, more) => {
    const only = this.#chosen.size === 1 && this.#chosen.has(name);
    if (!more) this.#chosen.clear();
    if (more && this.#chosen.has(name)) this.#chosen.delete(name); else if (!only) this.#chosen.add(name);
    for (const input of at("values").querySelectorAll("input")) input.value = "";
    this.redraw();
  };

  clear() {
    this.#chosen.clear();
    this.redraw();
  }

  show(state, readOnly) {
    this.state = state;
    const links = state.links ?? {};
    for (const name of this.#chosen) if (!links[name]) this.#chosen.delete(name);
    at("editor").hidden = !this.#chosen.size;
    if (!this.#chosen.size) return;
    const names = [...this.#chosen], first = links[names[0]];
    at("chosen").textContent = names.length === 1 ? names[0] : `${names.length} links`;
    const told = names.length === 1 ? this.#told(state, names[0], first) : [["chosen", names.join(", ")]];
    at("said").replaceChildren(...told.flatMap(([term, text]) => [element("dt", term), element("dd", text)]));
    for (const [field, key] of Object.entries(FIELDS)) {
      const shown = { rate, delay, jitter: delay, loss: share }[field];
      at("values").querySelector(`[name=${field}]`).placeholder = names.length === 1 ? shown(first[key]) : "";
    }
    at("down").textContent = first.up ? "Take down" : "Bring up";
    at("down").dataset.up = !first.up;
    for (const control of at("editor").elements) control.disabled = readOnly;
  }

  /** Asked, measured and planned of one link. */
  #told(state, name, link) {
    const by = link.replayed ? "its trace" : "its file";
    const changed = Object.entries(FIELDS).filter(([, key]) => link.changed[key] != null).map(([field]) => field);
    const estimate = Object.entries(state.training?.estimates ?? {}).find(([edge]) => edge === name || edge.split("->").map(end => siteOf(state, end)).join("->") === name);
    const newest = Object.values(state.plans ?? {}).filter(one => one.plan).at(-1)?.plan;
    const planned = (newest?.trees ?? []).map(tree => [tree, Object.entries(tree.reduce).filter(ends => ends.map(end => siteOf(state, end)).join("->") === name).length]).filter(([, edges]) => edges);
    return [
      ["asked", link.up ? `${rate(link.rate_bps)}, ${delay(link.delay_s)}, loss ${share(link.loss)} by ${by}${changed.length ? `, and by hand: ${changed.join(", ")}` : ""}` : "down"],
      ["measured", `${rate(carried(name))} passed${estimate ? `; taken for ${rate(estimate[1].rate_bps)}` : ""}`],
      ["planned", planned.length ? planned.map(([tree, edges]) => `${edges} edge${edges > 1 ? "s" : ""} to ${tree.root} (${share(tree.share)})`).join(", ") : "no tree's edge joins these two"],
    ];
  }

  /** All links, as a table. Of hundreds of rows those in sight are kept up to date, and the others as they come there. */
  list() {
    const links = this.state?.links ?? {}, box = at("links").parentElement, height = at("links").rows[1]?.offsetHeight || 1;
    const top = Math.floor(box.scrollTop / height) - 2, bottom = top + Math.ceil(box.clientHeight / height) + 4;
    const rows = d3.select("#links tbody").selectAll("tr").data(Object.entries(links), ([name]) => name).join(enter => {
      const row = enter.append("tr");
      row.append("td").append("button").attr("type", "button").on("click", (event, [name]) => this.choose(name, event.shiftKey || event.ctrlKey || event.metaKey));
      for (let cell = 0; cell < 4; cell++) row.append("td");
      return row;
    });
    rows.attr("aria-selected", ([name]) => this.has(name)).each((entry, place, nodes) => {
      if (nodes[place].filled && (place < top || place > bottom)) return;
      nodes[place].filled = true;
      const [name, link] = entry, cells = nodes[place].cells, by = Object.values(link.changed).some(value => value != null) ? " ✎" : "";
      const texts = [name + by, link.up ? rate(link.rate_bps) : "down", delay(link.delay_s), share(link.loss), rate(carried(name))];
      texts.forEach((text, column) => {
        const cell = column ? cells[column] : cells[0].firstChild;
        if (cell.textContent !== text) cell.textContent = text;
      });
    });
  }

  async #change(patch) {
    const before = Object.fromEntries([...this.#chosen].map(name => [name, this.state.links[name]]));
    try {
      const after = await ask("PATCH", "/links", Object.fromEntries(Object.keys(before).map(name => [name, { ...patch, tag: before[name].tag }])));
      this.#undone.push(Object.fromEntries(Object.entries(after).map(([name, link]) => [name, { ...takingBack(before[name], patch), tag: link.tag }])));
      at("undo").disabled = false;
      for (const input of at("values").querySelectorAll("input")) input.value = "";
      this.say("");
    } catch (error) {
      this.say(error.message);
    }
  }

  async undo() {
    const patches = this.#undone.pop();
    at("undo").disabled = !this.#undone.length;
    if (!patches) return;
    try {
      await ask("PATCH", "/links", patches);
      this.say("");
    } catch (error) {
      this.say(`Not undone: ${error.message}`);
    }
  }
}

/** What makes of a link what it was before a patch, as far as that named anything. */
function takingBack(link, patch) {
  return Object.fromEntries(Object.keys(patch).map(field => {
    if (field === "up") return [field, link.up];
    const value = link.changed[FIELDS[field]];
    return [field, value == null ? null : written[field](value)];
  }));
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}
