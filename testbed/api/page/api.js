// Requests to the API that serves this page, with the token that its link brought.

const inLink = new URLSearchParams(location.hash.slice(1)).get("token");
if (inLink) {
  sessionStorage.setItem("token", inLink);
  history.replaceState(null, "", location.pathname); // removes the token from the address bar, so that nobody copies it
}
addEventListener("hashchange", () => location.reload()); // the link was opened again in this tab
export const token = sessionStorage.getItem("token") ?? "";

/** Send a request and return the answer's value; throws an Error with the API's text if it is refused. */
export async function ask(method, path, body) {
  const request = { method, headers: { Authorization: `Bearer ${token}` } };
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const reply = await fetch(`/api/v1${path}`, request);
  if (reply.ok) return await reply.json();
  throw new Error(reason(await reply.text()));
}

/** The API's text in a refusal; the whole text of a refusal that is not the API's. */
function reason(text) {
  try {
    return JSON.parse(text).detail ?? text;
  } catch {
    return text;
  }
}
