// A run that is over, played: the state at any of its moments, made of its recording.

/** The state `at` seconds after training began; `recording` is what the API has. */
export function stateAt(recording, at) {
  const second = last(recording.traffic_s, at);
  const links = {}, traffic = {};
  for (const [name, link] of Object.entries(recording.links)) {
    const step = last(link.at_s, at);
    if (step < 0 || !link.there[step]) continue;
    const [source, target] = name.split("->");
    links[name] = {
      source, target, rate_bps: link.rate_bps[step], delay_s: link.delay_s[step], loss: link.loss[step], jitter_s: 0,
      up: link.up[step], replayed: link.at_s.length > 2, declared: {}, changed: {}, tag: "",
    };
    const bytes = recording.bytes[name];
    if (bytes && second >= 0) traffic[name] = { bytes: bytes[second] ?? 0 };
  }
  const plans = {};
  for (const [epoch, plan] of Object.entries(recording.plans)) if (plan.active_s <= at) plans[epoch] = plan;
  const upTo = (list, of) => list.slice(0, last(list, at, of) + 1);
  const rounds = upTo(recording.rounds, round => round.finished_s);
  const newest = rounds[rounds.length - 1];
  const metrics = Object.assign({}, ...rounds.slice(-50).map(round => round.metrics));
  return {
    network: recording.network, sites: recording.sites, hosts: recording.hosts, links, traffic, plans, traffic_at_s: recording.traffic_s[second],
    events: upTo(recording.events, event => event.at_s), rounds, decisions: upTo(recording.decisions, decision => decision.at_s),
    training: recording.rounds.length ? { round: newest?.round, rounds: recording.rounds.length, metrics, workers: spent(newest), state: "recorded" } : {},
    verdict: recording.verdict,
  };
}

/** Where each member's time of a round went. */
const spent = round => Object.fromEntries(Object.entries(round?.workers ?? {}).map(([name, [compute_s, wait_s, send_s]]) => [name, { compute_s, wait_s, send_s }]));

/** The place of the last in a list, ascending by `of`, that is not above `value`; -1 where all are. */
function last(list, value, of = one => one) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(list[middle]) <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** Lets the page's controls move through the recording; calls `show(state, at)`. */
export function play(recording, show) {
  const at = id => document.getElementById(id);
  const scrubber = at("scrubber"), button = at("play"), moment = at("moment");
  at("player").hidden = false;
  scrubber.max = recording.seconds;
  let now = 0, playing = false, before = 0;
  const put = seconds => {
    now = Math.min(Math.max(seconds, 0), recording.seconds);
    scrubber.value = now;
    moment.textContent = `${now.toFixed(1)} s of ${recording.seconds.toFixed(0)} s`;
    scrubber.setAttribute("aria-valuetext", moment.textContent);
    show(stateAt(recording, now), now);
  };
  const step = time => {
    if (!playing) return;
    put(now + Number(at("speed").value) * (time - before) / 1000);
    before = time;
    if (now >= recording.seconds) toggle(); else requestAnimationFrame(step);
  };
  const toggle = () => {
    playing = !playing;
    button.textContent = playing ? "Hold" : "Play";
    if (playing && now >= recording.seconds) now = 0;
    if (playing) requestAnimationFrame(time => { before = time; step(time); });
  };
  button.onclick = toggle;
  scrubber.oninput = () => put(Number(scrubber.value));
  put(recording.seconds);
  return put;
}
