// The table of all links. Of hundreds of rows only those in sight are updated.

import { at, write } from "./dom.js";
import { changesOf } from "./state.js";
import { carried } from "./use.js";
import { delay, mbit, share } from "./units.js";

const COLUMNS = 5;
const SPARE_ROWS = 2;

/** `choose(name, more)` is called when a link is selected, `isChosen(name)` for each link. */
export class LinkTable {
  #state = {};

  constructor(choose, isChosen) {
    this.choose = choose;
    this.isChosen = isChosen;
    at("links").parentElement.onscroll = () => this.show(this.#state);
  }

  show(state) {
    this.#state = state;
    const links = state.links ?? {};
    const [top, bottom] = inSight();
    const rows = d3.select("#links tbody").selectAll("tr").data(Object.entries(links), ([name]) => name)
      .join(enter => this.#newRows(enter));
    rows.attr("aria-selected", ([name]) => this.isChosen(name)).each((entry, place, nodes) => {
      const row = nodes[place];
      if (row.filled && (place < top || place > bottom)) return;
      row.filled = true;
      fill(row, entry, state);
    });
  }

  #newRows(enter) {
    const choose = (event, [name]) => this.choose(name, event.shiftKey || event.ctrlKey || event.metaKey);
    const row = enter.append("tr");
    row.append("td").append("button").attr("type", "button").on("click", choose);
    for (let cell = 1; cell < COLUMNS; cell++) row.append("td");
    return row;
  }
}

/** The first and the last row that can be seen. */
function inSight() {
  const box = at("links").parentElement, height = at("links").rows[1]?.offsetHeight || 1;
  const top = Math.floor(box.scrollTop / height) - SPARE_ROWS;
  return [top, top + Math.ceil(box.clientHeight / height) + 2 * SPARE_ROWS];
}

function fill(row, [name, link], state) {
  const [, by] = changesOf(state, name)[0] ?? [];
  const texts = [mbit(link.rate_bps), delay(link.delay_s), share(link.loss), mbit(carried(name))];
  write(row.cells[0].firstChild, by ? `${name} ✎` : name);
  row.cells[0].firstChild.title = by ? `${name}, changed ${by}` : name;
  if (!link.up) texts[0] = "down";
  texts.forEach((text, column) => write(row.cells[column + 1], text));
}
