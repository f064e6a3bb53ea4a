// The trees of the plan in force over the network, root by root; after a swap the old ones fade.

import { colorOfTree, onScheme } from "./colors.js";
import { at } from "./dom.js";
import { bow } from "./places.js";
import { planInForce, siteOf } from "./state.js";

const FADES_MS = 2000;

/** Drawn into `layer`, a group of the map. */
export class Trees {
  #epoch = null;
  #drawn = []; // what is drawn now

  constructor(layer) {
    this.layer = layer;
    const again = () => {
      this.#epoch = null;
      if (this.#drawn.length) this.show(...this.#drawn);
    };
    at("root").onchange = again;
    onScheme(again);
  }

  /** `anew` if sites have other places than before. */
  show(state, places, anew = false) {
    this.#drawn = [state, places];
    const { epoch = null, plan } = planInForce(state) ?? {};
    if (epoch === this.#epoch && !anew) return;
    this.#epoch = epoch;
    if (anew) {
      this.layer.selectAll("g.tree").remove(); // they would fade at the sites' old places
    } else {
      const old = this.layer.selectAll("g.tree:not(.old)").classed("old", true);
      setTimeout(() => old.remove(), FADES_MS);
    }
    const trees = plan?.trees ?? [];
    const wanted = this.#offerRoots(trees);
    trees.forEach((tree, number) => {
      if (!wanted || tree.root === wanted) this.#draw(tree, number, epoch, state, places);
    });
  }

  #draw(tree, number, epoch, state, places) {
    const color = colorOfTree(number);
    const group = this.layer.append("g").attr("class", "tree").attr("data-root", tree.root).attr("data-epoch", epoch);
    for (const ends of Object.entries(tree.reduce)) {
      const [from, to] = ends.map(member => siteOf(state, member));
      if (from === to || !places.has(from) || !places.has(to)) continue;
      const way = bow(places.get(from), places.get(to), 0.16 + 0.02 * number);
      group.append("path").attr("d", way).style("stroke", color);
    }
    const place = places.get(siteOf(state, tree.root));
    if (!place) return;
    group.append("circle").attr("class", "root").attr("cx", place[0]).attr("cy", place[1])
      .attr("r", 12 + 4 * (number % 3)).style("stroke", color);
  }

  /** Offer the roots of the trees to choose among, and keep the chosen root if it is still one of them. */
  #offerRoots(trees) {
    const select = at("root"), roots = [...new Set(trees.map(tree => tree.root))];
    const wanted = roots.includes(select.value) ? select.value : "";
    select.replaceChildren(new Option("all roots", ""), ...roots.map(root => new Option(root, root)));
    select.value = wanted;
    select.parentElement.hidden = !roots.length;
    return wanted;
  }
}
