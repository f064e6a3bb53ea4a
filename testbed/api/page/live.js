// Follows the state over the stream: a snapshot, then numbered updates.

import { token } from "./api.js";

const AGAIN_MS = 1000;

/** The close code of the server for a wrong token. */
const NOT_LET_IN = 1008;

/**
 * Calls `show(state, now)` at most once a frame when something changed, and `say(text)` and `end()` when the connection
 * is lost. `now` is in Unix seconds by the server's clock, as the state's times are: the browser's may be minutes off.
 */
export function followLive(show, say, end) {
  let state = {}, number = 0, drawing = false, ahead = 0, name;

  const drawSoon = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      show(state, Date.now() / 1000 + ahead);
    });
  };

  const connect = () => {
    const socket = new WebSocket(`ws://${location.host}/api/v1/stream`);
    let lacking = false;
    socket.onopen = () => socket.send(JSON.stringify({ token }));
    socket.onmessage = event => {
      const message = JSON.parse(event.data);
      if (message.kind === "snapshot") {
        // The next run of a sweep or a comparison is at the same address; nothing seen so far is of that run.
        if (name && message.state.network?.name !== name) return location.reload();
        state = message.state;
        name = state.network?.name;
        ahead = message.at_s - Date.now() / 1000;
        lacking = false;
        say("");
      } else if (message.number !== number + 1) {
        if (!lacking) socket.send(JSON.stringify({ kind: "snapshot" }));
        lacking = true;
        return;
      } else {
        apply(state, message);
      }
      number = message.number;
      drawSoon();
    };
    socket.onclose = event => {
      end();
      if (event.code === NOT_LET_IN) {
        say("This page has no valid token: open the link to the page again.");
        return;
      }
      say("The network or run has ended or does not answer; `testbed view` shows a run that is over. Trying again …");
      setTimeout(connect, AGAIN_MS);
    };
  };
  connect();
}

/** Apply an update in place. */
export function apply(state, update) {
  for (const [section, values] of Object.entries(update.set)) {
    state[section] = Object.assign(state[section] ?? {}, values);
  }
  for (const [section, keys] of Object.entries(update.removed)) {
    for (const key of keys) delete state[section][key];
  }
}
