// Curves over time: seconds a round, loss and accuracy, what passes over the network; and what happened when.

import { total } from "./use.js";

const HEIGHT = 150, MOST = 2000;
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function chart(title, labels, format) {
  const box = document.getElementById("charts").appendChild(document.createElement("div"));
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 0.5 } };
  const strokes = [color("--accent"), "#b7791f"];
  const options = {
    title, width: 320, height: HEIGHT, scales: { x: { time: false } }, axes: [axis, { ...axis, size: 60, values: (_, ticks) => ticks.map(format) }],
    series: [{ label: "s" }, ...labels.map((label, place) => ({ label, stroke: strokes[place], width: 1.5, spanGaps: true, value: (_, value) => value == null ? "–" : format(value) }))],
  };
  const plot = new uPlot(options, [[], ...labels.map(() => [])], box);
  new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
  return plot;
}

export class Charts {
  #rounds; #learned; #passed;
  #traffic = [[], []];
  #shown = "";

  show(state, now, zero) {
    const rounds = Object.values(state.rounds ?? {});
    const newest = `${rounds.length}/${rounds.at(-1)?.round}`;
    if (rounds.length && newest !== this.#shown) {
      this.#shown = newest;
      this.#rounds ??= chart("seconds a round", ["round"], value => value.toFixed(2));
      this.#learned ??= chart("loss, accuracy", ["loss", "accuracy"], value => value.toFixed(2));
      const every = Math.max(1, Math.ceil(rounds.length / MOST)), some = rounds.filter((_, place) => place % every === 0);
      const times = some.map(round => round.finished_s - zero);
      this.#rounds.setData([times, some.map(round => round.seconds)]);
      this.#learned.setData([times, some.map(round => round.metrics?.loss ?? null), some.map(round => round.metrics?.accuracy ?? null)]);
    }
    this.#passed ??= chart("over all links, Mbit/s", ["arrived"], value => value.toFixed(1));
    const [times, values] = this.#traffic, at = now - zero;
    if (times.length && at < times.at(-1)) this.#traffic = [[], []];
    else if (!times.length || at - times.at(-1) >= 1) {
      times.push(at);
      values.push(total() / 1e6);
      if (times.length > MOST) { times.shift(); values.shift(); }
      this.#passed.setData(this.#traffic);
    }
  }
}

/** Events and plan swaps as marks along the time from `zero` to `end`. */
export function drawTimeline(state, zero, end, goTo) {
  const svg = d3.select("#timeline"), width = svg.node().clientWidth || 300;
  const x = d3.scaleLinear([0, Math.max(end - zero, 1)], [8, width - 8]);
  const marks = [
    ...Object.values(state.events ?? {}).map(event => ({ at: event.at_s - zero, text: `${event.kind} ${event.target}${event.by ? " by hand" : ""}`, color: event.by ? "var(--bad)" : "var(--quiet)" })),
    ...Object.values(state.plans ?? {}).filter(one => one.swap?.active_s).map(one => ({ at: one.swap.active_s - zero, text: `plan ${one.swap.epoch} (${one.swap.policy}): ${one.swap.reason}`, color: "var(--accent)" })),
  ];
  svg.selectAll("circle").data(marks).join(enter => {
    const mark = enter.append("circle").attr("cy", 16).attr("r", 6);
    mark.append("title");
    return mark;
  }).attr("cx", mark => x(mark.at)).attr("fill", mark => mark.color).on("click", (_, mark) => goTo?.(mark.at)).select("title").text(mark => `${mark.at.toFixed(1)} s: ${mark.text}`);
  svg.selectAll("text").data(x.ticks(Math.min(10, width / 70))).join("text").attr("x", x).attr("y", 42).attr("text-anchor", "middle").text(tick => `${tick} s`);
}
