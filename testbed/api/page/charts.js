// Curves over time: seconds per round, loss and accuracy, what programs print, and the traffic of the network and of
// one link.

import { named, onScheme } from "./colors.js";
import { at, element, write } from "./dom.js";

const HEIGHT = 150, LINK_HEIGHT = 96, MOST_POINTS = 2000;

/** The number of figures that programs print which are shown, those with the most values. */
const MOST_CURVES = 4;

/** The charts share one cursor. */
const SYNC = { key: "time" };

/** A chart in `box`, with a line for each of `labels`. */
function chart(box, title, labels, height = HEIGHT) {
  if (title) box.append(element("h3", title));
  const strokes = ["--accent", "--wait"];
  const axis = {
    stroke: () => named("--quiet"),
    grid: { stroke: () => named("--line"), width: 1 },
    ticks: { show: false },
  };
  const line = (label, place) => ({
    label,
    stroke: () => named(strokes[place]),
    width: 2,
    spanGaps: true,
    points: { show: false },
    value: (_, value) => value == null ? "–" : figure(value),
  });
  const options = {
    width: 320,
    height,
    cursor: { sync: SYNC, y: false },
    scales: { x: { time: false } },
    axes: [
      { ...axis, size: 28, values: (_, ticks) => ticks.map(tick => `${tick} s`) },
      { ...axis, size: 46, values: (_, ticks) => ticks.map(String) }, // uPlot has rounded them to their step
    ],
    series: [{ label: "at", value: (_, at_s) => at_s == null ? "–" : `${at_s.toFixed(1)} s` }, ...labels.map(line)],
  };
  const plot = new uPlot(options, [[], ...labels.map(() => [])], box);
  new ResizeObserver(() => box.clientWidth && plot.setSize({ width: box.clientWidth, height })).observe(box);
  onScheme(() => plot.redraw());
  return plot;
}

/** Three figures, and all digits before the point. */
export const figure = value => Number(Math.abs(value) >= 100 ? Math.round(value) : value.toPrecision(3)).toString();

const newBox = () => at("charts").appendChild(element("div", "", "chart"));

/** The chart of a figure that programs print, with the heading that says which program's values it has. */
function newPrinted(name) {
  const box = newBox(), title = box.appendChild(element("h3", ""));
  return { box, title, plot: chart(box, "", [name]) };
}

/** Thin out a list to at most MOST_POINTS entries, more than can be seen. */
function thinned(list) {
  const every = Math.max(1, Math.ceil(list.length / MOST_POINTS));
  return every === 1 ? list : list.filter((_, place) => place % every === 0);
}

/** The rounds with a value of one of `names`, thinned out for each: only every tenth round or so has an accuracy. */
export function withValues(rounds, names) {
  const chosen = new Set(names.flatMap(name => thinned(rounds.filter(round => round.metrics?.[name] != null))));
  return rounds.filter(round => chosen.has(round));
}

/** The charts of the whole run. */
export class Charts {
  #rounds = null;
  #learned = null;
  #passed = null;
  #printed = {}; // the chart of each figure that programs print
  #shown = "";

  /** `passed` holds the times since `zero`, and the traffic over all links in bit/s. */
  show(state, zero, passed) {
    const rounds = Object.values(state.rounds ?? {});
    if (rounds.length || this.#rounds) this.#showRounds(rounds, zero);
    this.#showPrinted(Object.values(state.curves ?? {}), zero);
    if (!this.#passed && !Object.keys(state.links ?? {}).length) return; // a controller alone sees no links
    this.#passed ??= chart(newBox(), "Traffic over all links, Mbit/s", ["traffic"]);
    this.#passed.setData([passed[0], passed[1].map(bps => bps / 1e6)]);
  }

  /** Each figure as one program printed it: the same program as long as any of its values are kept. */
  #showPrinted(records, zero) {
    const curves = {};
    for (const { at_s, program, values } of records) {
      for (const [name, value] of Object.entries(values)) {
        const programs = curves[name] ??= new Map();
        if (!programs.has(program)) programs.set(program, []);
        programs.get(program).push([at_s - zero, value]);
      }
    }
    const chosen = Object.entries(curves).map(([name, programs]) => {
      const before = this.#printed[name]?.program;
      const program = programs.has(before) ? before : programs.keys().next().value;
      return { name, program, points: programs.get(program) };
    });
    const drawn = chosen.filter(({ points }) => points.length > 1)
      .sort((one, other) => other.points.length - one.points.length)
      .slice(0, MOST_CURVES);
    for (const { name, program, points } of drawn) {
      const printed = this.#printed[name] ??= newPrinted(name);
      printed.program = program;
      write(printed.title, `${name}, printed by ${program}`);
      const some = thinned(points);
      printed.plot.setData([some.map(([at]) => at), some.map(([, value]) => value)]);
    }
    const names = new Set(drawn.map(({ name }) => name));
    for (const [name, { box }] of Object.entries(this.#printed)) box.hidden = !names.has(name);
  }

  #showRounds(rounds, zero) {
    at("round-meaning").hidden = false;
    const newest = `${rounds.length}/${rounds.at(-1)?.round}`;
    if (newest === this.#shown) return;
    this.#shown = newest;
    const names = ["loss", "accuracy"];
    this.#rounds ??= chart(newBox(), "Seconds per round", ["round"]);
    this.#learned ??= chart(newBox(), "Loss and accuracy", names);
    const some = thinned(rounds);
    const ends = list => list.map(round => round.finished_s - zero);
    const learned = withValues(rounds, names);
    const metrics = names.map(name => learned.map(round => round.metrics[name] ?? null));
    this.#rounds.setData([ends(some), some.map(round => round.seconds)]);
    this.#learned.setData([ends(learned), ...metrics]);
  }
}

/** The chart of the selected link: its rate and its traffic. */
export class LinkChart {
  #plot = null;

  show(history) {
    at("link-chart").hidden = !history || history[0].length < 2;
    if (at("link-chart").hidden) return;
    const mbit = values => values.map(bps => bps == null ? null : bps / 1e6);
    const title = "Traffic and rate, Mbit/s", labels = ["traffic", "rate"];
    this.#plot ??= chart(at("link-chart"), title, labels, LINK_HEIGHT);
    const [times, carried, rates] = history;
    this.#plot.setData([times, mbit(carried), mbit(rates)]);
  }
}
