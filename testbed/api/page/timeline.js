// The timeline: the plans in force, the events, and the moment shown.

import { at } from "./dom.js";
import { inWords, moreOf, plansInForce } from "./state.js";
import { counted } from "./units.js";

const PLANS_Y = 0, PLAN_HEIGHT = 20, EVENTS_Y = 34, AXIS_Y = 56, TICKS_Y = 74;
const SIDE = 8; // half a scrubber's thumb, so that a moment is above its place there
const LETTER = 6.4, MARK = 8; // what a letter and a mark take, in pixels
const TICK_APART = 80;

/** `now` and `end` are moments as events have them; `goTo(seconds)`, where one can go to a moment. */
export function drawTimeline(state, zero, now, end, goTo) {
  const svg = d3.select("#timeline"), width = svg.node().clientWidth || 300;
  const x = d3.scaleLinear([0, Math.max(end - zero, 1)], [SIDE, width - SIDE]);
  const plans = plansInForce(state), events = Object.values(state.events ?? {});
  drawPlans(svg, x, plans, zero, Math.min(now, end));
  drawEvents(svg, x, events, zero, goTo);
  drawAxis(svg, x, width);
  const here = [Math.min(now, end) - zero];
  svg.selectAll("line.here").data(here).join("line").attr("class", "here")
    .attr("x1", x).attr("x2", x).attr("y1", PLANS_Y).attr("y2", AXIS_Y);
  const there = `${counted(plans.length, "plan")} and ${counted(events.length, "event")}`;
  at("timeline").setAttribute("aria-label", `${there}; the list of events has them as text`);
}

/** A plan is a band from its first round to the next one's. */
function drawPlans(svg, x, plans, zero, end) {
  const bands = plans.map(({ epoch, plan, since, why }, place) => {
    const from = x(since === null ? 0 : since - zero), to = x((plans[place + 1]?.since ?? end) - zero);
    return { epoch, from, width: Math.max(to - from, 1), text: `plan ${epoch}: ${plan.policy}`, why };
  });
  const groups = svg.selectAll("g.plan").data(bands, band => band.epoch).join(enter => {
    const group = enter.append("g").attr("class", "plan");
    group.append("rect").attr("y", PLANS_Y).attr("height", PLAN_HEIGHT).attr("rx", 3);
    group.append("text").attr("y", PLANS_Y + 14);
    group.append("title");
    return group;
  });
  groups.select("rect").attr("x", band => band.from).attr("width", band => band.width);
  groups.select("text").attr("x", band => band.from + 6).text(band => fitting(band.text, band.width - 10));
  groups.select("title").text(band => band.why ? `${band.text}; ${band.why}` : band.text);
}

/** An event is a mark, with its words where there is room before the next. */
function drawEvents(svg, x, events, zero, goTo) {
  const placed = events.map(event => ({ event, x: x(Math.max(event.at_s - zero, 0)) }))
    .sort((one, other) => one.x - other.x);
  const room = place => (placed[place + 1]?.x ?? x.range()[1]) - placed[place].x - 2 * MARK;
  const groups = svg.selectAll("g.event").data(placed).join(enter => {
    const group = enter.append("g");
    group.append("path").attr("d", d3.symbol(d3.symbolDiamond, 60)());
    group.append("text").attr("x", MARK).attr("y", 4);
    group.append("title");
    return group;
  });
  const kind = event => event.by ? " hand" : event.after_bps == null ? "" : " step";
  groups.attr("class", ({ event }) => `event${kind(event)}${goTo ? " goes" : ""}`)
    .attr("transform", mark => `translate(${mark.x},${EVENTS_Y})`)
    .on("click", (_, { event }) => goTo?.(event.at_s));
  groups.select("text").text(({ event }, place) => fitting(inWords(event), room(place)));
  groups.select("title").text(({ event }) => {
    const more = moreOf(event);
    return `${Math.max(event.at_s - zero, 0).toFixed(1)} s: ${inWords(event)}${more && `; ${more}`}`;
  });
}

function drawAxis(svg, x, width) {
  svg.selectAll("line.axis").data([0]).join("line").attr("class", "axis")
    .attr("x1", SIDE).attr("x2", width - SIDE).attr("y1", AXIS_Y).attr("y2", AXIS_Y);
  svg.selectAll("text.tick").data(x.ticks(Math.min(10, width / TICK_APART))).join("text").attr("class", "tick")
    .attr("x", x).attr("y", TICKS_Y).attr("text-anchor", "middle").text(tick => `${tick} s`);
}

/** The longest of the whole text, its first two words, its first word and nothing that fits into `width` pixels. */
function fitting(text, width) {
  const fits = words => words.length * LETTER <= width, words = text.split(/[:, ]/);
  return [text, words.slice(0, 2).join(" "), words[0]].find(fits) ?? "";
}
