// What can be asked of all that runs: hold its traces, another policy, a plan, one more worker, its end.

import { ask } from "./api.js";
import { at, element } from "./dom.js";

/** `say(text)` shows an error; `current()` is the state that is shown. */
export function takeOrders(say, current) {
  const order = async (method, path, body) => {
    try {
      await ask(method, path, body);
      say("");
    } catch (error) {
      say(error.message);
    }
  };
  at("pause").onclick = () => order("PUT", "/replay", { paused: !current().network.replay.paused });
  at("stop").onclick = () => confirm(`End ${current().network.name}?`) && order("POST", "/stop", {});
  at("policy-form").onsubmit = event => {
    event.preventDefault();
    order("PUT", "/policy", { policy: at("policy").value.trim() });
  };
  at("add-form").onsubmit = event => {
    event.preventDefault();
    order("POST", "/workers", { site: at("site").value });
  };
  at("plan-from-file").onclick = () => at("plan-file").click();
  at("plan-file").onchange = async () => {
    const [file] = at("plan-file").files;
    at("plan-file").value = "";
    const plan = file && parsed(await file.text());
    if (plan) order("PUT", "/plan", { plan });
    else if (file) say(`${file.name} is no JSON; write a plan as a run keeps it in plans/`);
  };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Show the orders that can be given now. */
export function offerOrders({ network, sites = {}, training = {} }, over) {
  at("pause").hidden = over || !network.replay.links;
  at("pause").textContent = network.replay.paused ? "Let traces go on" : "Hold traces";
  at("stop").hidden = at("undo").hidden = at("add-form").hidden = over;
  offerSites(Object.keys(sites).sort());
  at("policy-form").hidden = at("plan-from-file").hidden = over || !training.policy;
}

/** Where one more worker can be; the one that is chosen stays chosen. */
function offerSites(names) {
  const [key, chosen] = [names.join(), at("site").value];
  if (at("site").dataset.names === key) return;
  at("site").dataset.names = key;
  at("site").replaceChildren(...names.map(name => element("option", name)));
  if (names.includes(chosen)) at("site").value = chosen;
}
