// The page: takes the state from what runs or from a recording, and hands it to each view.

import { ask } from "./api.js";
import { followLive } from "./live.js";
import { Past } from "./past.js";
import { play } from "./recorded.js";
import { NetworkView } from "./network.js";
import { Editor } from "./editor.js";
import { Charts, drawTimeline } from "./charts.js";
import { count } from "./use.js";
import { tell } from "./told.js";
import { seconds } from "./units.js";

const at = id => document.getElementById(id);
const say = text => { at("alert").textContent = text; };

let current = {}, recorded = false, past = null, end = null, goTo = null, zero = 0;
const editor = new Editor(say, () => {
  draw();
  editor.list();
});
const network = new NetworkView(editor.choose, editor.has);
const charts = new Charts();

function show(state, moment) {
  current = state;
  count(state.traffic ?? {}, state.traffic_at_s ?? moment);
  draw();
  tellSoon(state, moment);
}

/** What is read rather than seen: tables, curves and lists keep up at a pace that eyes do. */
const tellSoon = paced((state, now) => {
  editor.list();
  if (!past?.looking) charts.show(state, now, zero);
  drawTimeline(state, zero, end ?? now, goTo);
  tell(state, zero);
}, 300);

/** `work`, called at most once in so many milliseconds, and at last with what it was last asked for. */
function paced(work, apart) {
  let waiting = null, timer = null;
  const go = () => {
    timer = null;
    if (waiting === null) return;
    const asked = waiting;
    waiting = null;
    timer = setTimeout(go, apart);
    work(...asked);
  };
  return (...asked) => {
    waiting = asked;
    if (timer === null) go();
  };
}

function draw() {
  if (!current.network) return;
  network.show(current);
  editor.show(current, recorded || past.looking);
  facts(current);
}

function facts({ network: one, training = {} }) {
  document.title = at("title").textContent = one.name;
  const { loss, accuracy } = training.metrics ?? {};
  const told = [
    `${one.topology}, ${one.backend} shaping`,
    training.round != null && `round ${training.round} of ${training.rounds}`,
    training.round_seconds != null && `${seconds(training.round_seconds)} a round`,
    training.policy && `by ${training.policy}`,
    loss != null && `loss ${loss.toFixed(3)}`,
    accuracy != null && `accuracy ${(100 * accuracy).toFixed(1)} %`,
    one.replay.paused && "traces are held",
  ].filter(Boolean).join(" · ");
  if (at("facts").textContent !== told) at("facts").textContent = told;
  if (one.failure) say(one.failure);
  at("pause").hidden = recorded || !one.replay.links;
  at("pause").textContent = one.replay.paused ? "Let traces go on" : "Hold traces";
  at("stop").hidden = at("undo").hidden = recorded;
  at("policy-form").hidden = recorded || !training.policy;
}

const order = async (method, path, body) => {
  try {
    await ask(method, path, body);
    say("");
  } catch (error) {
    say(error.message);
  }
};
at("pause").onclick = () => order("PUT", "/replay", { paused: !current.network.replay.paused });
at("stop").onclick = () => confirm(`End ${current.network.name}?`) && order("POST", "/stop", {});
at("policy-form").onsubmit = event => {
  event.preventDefault();
  order("PUT", "/policy", { policy: at("policy").value.trim() });
};

try {
  const { kind } = await ask("GET", "/status");
  if (kind === "recording") {
    recorded = true;
    const recording = await ask("GET", "/recording");
    end = recording.seconds;
    goTo = play(recording, show);
  } else {
    past = new Past(show);
    followLive(state => {
      const now = Date.now() / 1000;
      zero ||= now - (state.network?.replay?.elapsed_s ?? 0);
      past.follow(state, now, zero);
    }, say);
  }
} catch (error) {
  at("facts").textContent = "";
  say(error.message);
}
