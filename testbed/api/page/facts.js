// The top of the page: the name, kind and key figures of the network or run.

import { at, write } from "./dom.js";
import { planInForce } from "./state.js";
import { total } from "./use.js";
import { clock, counted, loss, rate, seconds } from "./units.js";

export function tellFacts(state, elapsed_s) {
  const { network } = state;
  document.title = network.name;
  write(at("title"), network.name);
  if (network.kind === "controller") {
    write(at("facts"), `a controller with ${counted(Object.keys(state.hosts).length, "member")} on separate machines`);
    return tellFigures(ofTraining(state, elapsed_s));
  }
  const kinds = { network: "a network that is up", run: "a run in progress", recording: "a recorded run" };
  const held = network.replay.paused ? ", traces paused" : "";
  write(at("facts"), `${kinds[network.kind]}${held} · topology ${network.topology} · ${network.backend} shaping`);
  const { round, rounds } = state.training ?? {}; // of a command and of a controller alone nobody knows `rounds`
  tellFigures(rounds || round != null ? ofTraining(state, elapsed_s) : ofNetwork(state, elapsed_s));
}

function ofTraining(state, elapsed_s) {
  const { round, rounds, round_seconds, metrics = {} } = state.training;
  const { epoch, plan } = planInForce(state) ?? {};
  const policy = state.training.policy ?? plan?.policy; // a recording does not say who chose
  const took = round_seconds ?? Object.values(state.rounds ?? {}).at(-1)?.seconds;
  return [
    ["time", clock(elapsed_s)],
    ["round", round ?? 0, rounds == null ? "" : `of ${rounds}`],
    ["last round", seconds(took)],
    ["loss", loss(metrics.loss)],
    ["accuracy", metrics.accuracy == null ? "–" : `${(100 * metrics.accuracy).toFixed(1)} %`],
    plan ? ["plan", plan.policy, plan.policy === policy ? epoch : `${epoch}, by ${policy}`] : ["plan", "–"],
    ...ofLinks(state),
  ];
}

/** The traffic, where there are links: a controller alone does not see any. */
function ofLinks(state) {
  return Object.keys(state.links ?? {}).length ? [["traffic, all links", rate(total())]] : [];
}

function ofNetwork(state, elapsed_s) {
  const links = Object.values(state.links ?? {}), down = links.filter(link => !link.up).length;
  const workers = Object.values(state.hosts ?? {}).filter(host => host.kind === "worker").length;
  const printed = Object.entries(state.training?.metrics ?? {}).filter(([, value]) => value != null);
  return [
    ["time", clock(elapsed_s)],
    ["sites", Object.keys(state.sites ?? {}).length],
    ["workers", workers],
    ["links", links.length, down ? `${down} down` : "all up"],
    ...printed.slice(0, 2).map(([name, value]) => [name, Number(value.toPrecision(4))]),
    ...ofLinks(state),
  ];
}

function tellFigures(figures) {
  const boxes = d3.select("#figures").selectAll("div").data(figures).join(enter => {
    const box = enter.append("div");
    box.append("dt");
    box.append("dd").append("span");
    box.select("dd").append("small");
    return box;
  }).nodes();
  figures.forEach(([term, value, more = ""], place) => {
    const [name, said] = boxes[place].children;
    write(name, term);
    write(said.firstChild, String(value));
    write(said.lastChild, more === "" ? "" : ` ${more}`);
  });
}
