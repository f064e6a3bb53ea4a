// The page: takes the state from the stream or from a recording, and passes it to each view.

import { ask } from "./api.js";
import { Charts } from "./charts.js";
import { at, paced, write } from "./dom.js";
import { Editor } from "./editor.js";
import { tellFacts } from "./facts.js";
import { LinkTable } from "./link-table.js";
import { followLive } from "./live.js";
import { NetworkView } from "./network.js";
import { offerOrders, takeOrders } from "./orders.js";
import { Past } from "./past.js";
import { Player } from "./recorded.js";
import { beginOf } from "./state.js";
import { drawTimeline } from "./timeline.js";
import { tell } from "./told.js";
import { count } from "./use.js";

/** Texts and tables are redrawn at most this often, as fast as people read. */
const TOLD_APART_MS = 300;

let said = ""; // the answer to the newest request, or what is wrong with the connection

/** Show the failure of the network or run, and below it what `say` was given. A screen reader reads each text once. */
const alarm = () => write(at("alert"), [newest().network?.failure, said].filter(Boolean).join("\n"));

const say = text => {
  said = text;
  alarm();
};

let current = {}, moment = 0;
let past = null, player = null; // a recording has a player, anything else a past
let over = false; // the network or run has ended, or is a recording, and takes no requests
let zero = 0; // the origin of the times that are shown, in Unix seconds; 0 in a recording

/** The present state, also while the page shows an earlier one. */
const newest = () => past?.newest ?? current;

const editor = new Editor(say, () => {
  draw();
  tellSoon();
});
const network = new NetworkView(editor.choose, editor.has);
const table = new LinkTable(editor.choose, editor.has);
const charts = new Charts();
takeOrders(say, newest);

function show(state, at_s) {
  current = state;
  moment = at_s;
  count(state.traffic ?? {}, state.traffic_at_s ?? at_s);
  draw();
  tellSoon();
}

function draw() {
  if (!current.network) return;
  network.show(current);
  editor.show(current, over || past.looking, over);
}

/** Figures, tables, curves and lists. */
const tellSoon = paced(() => {
  if (!current.network) return;
  const source = player ?? past;
  tellFacts(current, moment - zero);
  offerOrders(newest(), over);
  alarm();
  table.show(current);
  charts.show(current, zero, source.passed);
  editor.draw(source.historyOf);
  drawTimeline(current, zero, moment, source.end, player?.goTo);
  tell(current, zero);
}, TOLD_APART_MS);

try {
  const { kind } = await ask("GET", "/status");
  if (kind === "recording") {
    over = true;
    player = new Player(await ask("GET", "/recording"), show);
    player.goTo(player.end);
  } else {
    past = new Past(show);
    const end = () => {
      over = true;
      draw();
      tellSoon();
    };
    followLive((state, now) => {
      over = false;
      zero ||= beginOf(state, now);
      past.follow(state, now, zero);
      if (past.looking) tellSoon(); // the controls are for the present
    }, say, end);
  }
} catch (error) {
  write(at("facts"), "");
  say(error.message);
}
