// The map of the network: its sites, and its links coloured by their use.

import { colorOfUse, onScheme, scaleOfUse } from "./colors.js";
import { at, element } from "./dom.js";
import { bow, placesOf } from "./places.js";
import { Trees } from "./trees.js";
import { carried } from "./use.js";
import { delay, rate } from "./units.js";

/** The width of a label in pixels. A site nearer than that to the right side has its label on the left. */
const LABEL = 130;

/** Draws the page's map; `choose(name, more)` is called when a link is selected, `isChosen(name)` for each link. */
export class NetworkView {
  #places = new Map();
  #size = [at("map").clientWidth, at("map").clientHeight];
  #key = "";
  #placed = 0; // how often sites got their places

  constructor(choose, isChosen) {
    this.svg = d3.select("#map");
    this.all = this.svg.append("g");
    this.land = this.all.append("path").attr("class", "land");
    this.links = this.all.append("g");
    this.trees = new Trees(this.all.append("g"));
    this.sites = this.all.append("g");
    this.choose = choose;
    this.isChosen = isChosen;
    this.#letZoom();
    new ResizeObserver(() => this.#fit()).observe(at("map"));
    drawLegend();
    onScheme(() => {
      drawLegend();
      this.#placed++; // so that each link is drawn again
      if (this.state) this.#drawLinks(this.state);
    });
  }

  /** Sites get other places on a map of another size. */
  #fit() {
    this.#size = [at("map").clientWidth, at("map").clientHeight];
    if (this.state) this.show(this.state);
  }

  #letZoom() {
    const zoom = d3.zoom().scaleExtent([0.6, 12]).on("zoom", event => this.all.attr("transform", event.transform));
    this.svg.call(zoom).on("dblclick.zoom", null);
    at("fit").onclick = () => this.svg.call(zoom.transform, d3.zoomIdentity);
  }

  show(state) {
    this.state = state;
    const names = Object.keys(state.sites ?? {}).sort();
    const drawn = names.map(name => [name, state.sites[name].label, state.sites[name].position]);
    const counts = names.map(name => state.sites[name].workers.length);
    const key = JSON.stringify([drawn, counts, Object.keys(state.links ?? {}).length, this.#size]);
    const moved = key !== this.#key;
    if (moved) {
      this.#key = key;
      this.#place(state, names);
      this.#drawSites(state, names);
    }
    this.#drawLinks(state);
    this.trees.show(state, this.#places, moved);
  }

  #place(state, names) {
    const { places, outline } = placesOf(state, names, ...this.#size);
    this.#placed++;
    this.#places = places;
    this.land.attr("d", null);
    outline?.then(drawn => this.land.attr("d", drawn));
  }

  #drawSites(state, names) {
    const groups = this.sites.selectAll("g").data(names, name => name).join(enter => {
      const group = enter.append("g").attr("class", "site");
      group.append("circle");
      const text = group.append("text").attr("y", 4);
      text.append("tspan").attr("class", "name");
      text.append("tspan").attr("class", "count");
      return group;
    });
    const workers = name => state.sites[name].workers.length;
    const left = name => this.#places.get(name)[0] > this.#size[0] - LABEL;
    groups.attr("transform", name => `translate(${this.#places.get(name)})`);
    groups.select("circle").attr("r", name => 5 + 1.5 * Math.sqrt(workers(name)));
    groups.select("text").attr("x", name => left(name) ? -14 : 14)
      .attr("text-anchor", name => left(name) ? "end" : "start");
    groups.select(".name").text(name => state.sites[name].label ?? name);
    groups.select(".count").text(name => ` (${workers(name)})`);
  }

  #drawLinks(state) {
    const there = ([, link]) => this.#places.has(link.source) && this.#places.has(link.target);
    const data = Object.entries(state.links ?? {}).filter(there);
    const groups = this.links.selectAll("g").data(data, ([name]) => name).join(enter => this.#newLinks(enter));
    groups.each((entry, place, nodes) => this.#drawLink(entry, nodes[place]));
  }

  #newLinks(enter) {
    const choose = (event, [name]) => this.choose(name, event.shiftKey || event.ctrlKey || event.metaKey);
    const chooseByKey = (event, entry) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(event, entry);
    };
    const group = enter.append("g").attr("tabindex", 0).attr("role", "button").attr("data-link", ([name]) => name)
      .on("click", choose).on("keydown", chooseByKey);
    group.append("path").attr("class", "hit");
    group.append("path").attr("class", "line");
    group.append("title");
    return group;
  }

  #drawLink([name, link], node) {
    const used = carried(name), chosen = this.isChosen(name);
    const told = link.up ? `${rate(link.rate_bps)}, ${delay(link.delay_s)}, traffic ${rate(used)}` : "down";
    const look = `${told} ${chosen} ${this.#placed}`;
    if (node.look === look) return; // most of 500 links do not change within a tenth of a second
    const [hit, line, title] = node.children;
    if (node.placed !== this.#placed) {
      node.placed = this.#placed;
      const way = bow(this.#places.get(link.source), this.#places.get(link.target), 0.08);
      for (const path of [hit, line]) path.setAttribute("d", way);
    }
    node.look = look;
    node.setAttribute("class", link.up ? "link" : "link down");
    node.setAttribute("aria-pressed", chosen);
    node.setAttribute("aria-label", title.textContent = `${name}: ${told}`);
    line.style.stroke = chosen || !link.up ? "" : colorOfUse((used ?? 0) / link.rate_bps);
  }
}

function drawLegend() {
  const scale = element("i", "", "scale");
  scale.style.background = scaleOfUse();
  const marks = { "idle to full": scale, down: element("i", "", "cut"), "plan's tree": element("i", "", "planned") };
  at("legend").replaceChildren(...Object.entries(marks).map(([text, mark]) => {
    const one = element("span");
    one.append(mark, text);
    return one;
  }));
}
