// The network: on a map where all sites have positions, else as a graph; the plan's trees over it.

import { carried, colorOf } from "./use.js";
import { rate, delay } from "./units.js";

const WIDTH = 1000, HEIGHT = 560, EDGE = 60;

/** Draws into the page's map; `choose(name, more)` is called for a link that is chosen, `isChosen(name)` asked of each. */
export class NetworkView {
  #places = new Map();
  #sites = "";
  #epoch = null;
  #placed = 0; // how often sites got their places

  constructor(choose, isChosen) {
    this.svg = d3.select("#map").attr("viewBox", `0 0 ${WIDTH} ${HEIGHT}`).attr("preserveAspectRatio", "xMidYMid meet");
    this.all = this.svg.append("g");
    this.land = this.all.append("path").attr("class", "land");
    this.links = this.all.append("g");
    this.trees = this.all.append("g");
    this.sites = this.all.append("g");
    this.choose = choose;
    this.isChosen = isChosen;
    const zoom = d3.zoom().scaleExtent([0.6, 12]).on("zoom", event => this.all.attr("transform", event.transform));
    this.svg.call(zoom).on("dblclick.zoom", null);
    document.getElementById("fit").onclick = () => this.svg.call(zoom.transform, d3.zoomIdentity);
    document.getElementById("root").onchange = () => { this.#epoch = null; this.show(this.state); };
    for (const [text, part] of [["idle", 0], ["half", 0.5], ["full", 1]]) {
      const mark = document.getElementById("legend").appendChild(document.createElement("span"));
      mark.append(document.createElement("i"), text);
      mark.firstChild.style.background = colorOf(part);
    }
  }

  show(state) {
    this.state = state;
    const names = Object.keys(state.sites ?? {}).sort();
    const key = JSON.stringify([names, Object.keys(state.links ?? {}).length]);
    if (key !== this.#sites) {
      this.#sites = key;
      this.#place(state, names);
      this.#drawSites(state, names);
    }
    this.#drawLinks(state);
    this.#drawTrees(state);
  }

  #place(state, names) {
    this.#placed++;
    const known = names.filter(name => state.sites[name].position);
    this.#places = known.length === names.length && names.length ? this.#onMap(state, names) : this.#asGraph(state, names);
  }

  #onMap(state, names) {
    const points = { type: "MultiPoint", coordinates: names.map(name => [state.sites[name].position[1], state.sites[name].position[0]]) };
    const projection = d3.geoNaturalEarth1();
    const middle = d3.geoCentroid(points);
    projection.rotate([-middle[0], 0]).fitExtent([[2 * EDGE, EDGE], [WIDTH - 2 * EDGE, HEIGHT - EDGE]], points);
    if (projection.scale() > 4000) projection.scale(4000); // sites of one town: the coast is nowhere near
    coast().then(land => this.land.attr("d", d3.geoPath(projection)(land)));
    return new Map(names.map((name, place) => [name, projection(points.coordinates[place])]));
  }

  #asGraph(state, names) {
    const nodes = names.map((id, place) => ({ id, x: WIDTH / 2 + 200 * Math.cos(place), y: HEIGHT / 2 + 200 * Math.sin(place) }));
    const pairs = Object.values(state.links).map(link => ({ source: link.source, target: link.target, delay: link.delay_s }));
    const simulation = d3.forceSimulation(nodes)
      .force("link", d3.forceLink(pairs).id(node => node.id).distance(pair => 80 + 1500 * Math.min(pair.delay, 0.2)))
      .force("apart", d3.forceManyBody().strength(-900)).force("x", d3.forceX(WIDTH / 2)).force("y", d3.forceY(HEIGHT / 2)).stop();
    simulation.tick(200);
    const [left, right] = d3.extent(nodes, node => node.x), [top, bottom] = d3.extent(nodes, node => node.y);
    const x = d3.scaleLinear([left, right], [2 * EDGE, WIDTH - 2 * EDGE]), y = d3.scaleLinear([top, bottom], [EDGE, HEIGHT - EDGE]);
    this.land.attr("d", null);
    return new Map(nodes.map(node => [node.id, [x(node.x), y(node.y)]]));
  }

  #drawSites(state, names) {
    const groups = this.sites.selectAll("g").data(names, name => name).join(enter => {
      const group = enter.append("g").attr("class", "site");
      group.append("circle").attr("r", 7);
      group.append("text").attr("x", 11).attr("y", 4);
      return group;
    });
    groups.attr("transform", name => `translate(${this.#places.get(name)})`);
    groups.select("text").text(name => `${state.sites[name].label ?? name} (${state.sites[name].workers.length})`);
  }

  #drawLinks(state) {
    const data = Object.entries(state.links ?? {}).filter(([, link]) => this.#places.has(link.source) && this.#places.has(link.target));
    const choose = (event, [name]) => this.choose(name, event.shiftKey || event.ctrlKey || event.metaKey);
    const groups = this.links.selectAll("g").data(data, ([name]) => name).join(enter => {
      const group = enter.append("g").attr("tabindex", 0).attr("role", "button").attr("data-link", ([name]) => name)
        .on("click", choose).on("keydown", (event, entry) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(event, entry); }
        });
      group.append("path").attr("class", "hit");
      group.append("path").attr("class", "line");
      group.append("title");
      return group;
    });
    groups.each((entry, place, nodes) => {
      const [name, link] = entry, node = nodes[place], used = carried(name), chosen = this.isChosen(name);
      const told = link.up ? `${rate(link.rate_bps)}, ${delay(link.delay_s)}, ${rate(used)} used` : "down";
      const look = `${told} ${chosen} ${this.#placed}`;
      if (node.look === look) return; // of 500 links, ten times a second, most are as they were
      const [, line, title] = node.children;
      if (node.placed !== this.#placed) {
        node.placed = this.#placed;
        for (const path of [node.children[0], line]) path.setAttribute("d", this.#bow(link.source, link.target, 0.08));
      }
      node.look = look;
      node.setAttribute("class", link.up ? "link" : "link down");
      node.setAttribute("aria-pressed", chosen);
      node.setAttribute("aria-label", title.textContent = `${name}: ${told}`);
      line.style.stroke = chosen ? "" : link.up ? colorOf(used == null ? 0 : used / link.rate_bps) : "var(--bad)";
    });
  }

  /** An arc from one place to another, to the left of the way, so that both directions are seen. */
  #bow(source, target, part) {
    const [x, y] = this.#places.get(source), [u, v] = this.#places.get(target);
    const cx = (x + u) / 2 + part * 2 * (v - y), cy = (y + v) / 2 - part * 2 * (u - x);
    return `M${x},${y} Q${cx},${cy} ${u},${v}`;
  }

  #drawTrees(state) {
    const epochs = Object.keys(state.plans ?? {}).map(Number).filter(epoch => state.plans[epoch].plan).sort((a, b) => a - b);
    const active = epochs.filter(epoch => state.plans[epoch].swap?.active_s !== null);
    const epoch = active[active.length - 1] ?? epochs[0] ?? null;
    if (epoch === this.#epoch) return;
    this.#epoch = epoch;
    const old = this.trees.selectAll("g.tree:not(.old)").classed("old", true);
    setTimeout(() => old.remove(), 2000);
    const trees = epoch === null ? [] : state.plans[epoch].plan.trees;
    const wanted = this.#roots(trees);
    trees.forEach((tree, number) => {
      if (wanted && tree.root !== wanted) return;
      const group = this.trees.append("g").attr("class", "tree").attr("data-root", tree.root).attr("data-epoch", epoch);
      const color = d3.schemeTableau10[number % 10];
      for (const [member, parent] of Object.entries(tree.reduce)) {
        const [from, to] = [siteOf(state, member), siteOf(state, parent)];
        if (from !== to && this.#places.has(from) && this.#places.has(to)) group.append("path").attr("d", this.#bow(from, to, 0.16 + 0.02 * number)).style("stroke", color);
      }
      const place = this.#places.get(siteOf(state, tree.root));
      if (place) group.append("circle").attr("class", "root").attr("cx", place[0]).attr("cy", place[1]).attr("r", 11 + 3 * (number % 3)).style("stroke", color);
    });
  }

  #roots(trees) {
    const select = document.getElementById("root"), roots = [...new Set(trees.map(tree => tree.root))];
    const wanted = roots.includes(select.value) ? select.value : "";
    select.replaceChildren(new Option("all roots", ""), ...roots.map(root => new Option(root, root, false, root === wanted)));
    select.value = wanted;
    return wanted;
  }
}

export const siteOf = (state, member) => state.hosts?.[member]?.site ?? member.replace(/-w\d+$/, "");

let land;
const coast = () => land ??= fetch("/page/vendor/land-110m.json").then(reply => reply.json()).then(atlas => topojson.feature(atlas, atlas.objects.land));
