// The controls of the network or run: pause its traces, use a policy or a plan, add a worker, stop it.

import { ask } from "./api.js";
import { at, element } from "./dom.js";

/** `say(text)` shows an error; `current()` is the present state. */
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
  at("stop").onclick = () => confirm(`Stop ${current().network.name}?`) && order("POST", "/stop", {});
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
    const plan = file && parsed(await file.text().catch(() => ""));
    if (plan) order("PUT", "/plan", { plan });
    else if (file) say(`${file.name} can't be read, or is not JSON; choose a plan that a run keeps in plans/`);
  };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Show the controls that work now. */
export function offerOrders({ network, sites = {}, training = {} }, over) {
  at("pause").hidden = over || !network.replay.links;
  at("pause").textContent = network.replay.paused ? "Continue traces" : "Pause traces";
  at("stop").hidden = at("undo").hidden = over;
  at("add-form").hidden = over || network.kind === "controller";
  offerSites(Object.keys(sites).sort());
  at("policy-form").hidden = at("plan-from-file").hidden = over || !training.policy;
}

/** List the sites for one more worker, and keep the selected one. */
function offerSites(names) {
  const [key, chosen] = [names.join(), at("site").value];
  if (at("site").dataset.names === key) return;
  at("site").dataset.names = key;
  at("site").replaceChildren(...names.map(name => element("option", name)));
  if (names.includes(chosen)) at("site").value = chosen;
}
