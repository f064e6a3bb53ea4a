// Requests to the API that serves this page, with the token that its link brought.

const inLink = new URLSearchParams(location.hash.slice(1)).get("token");
if (inLink) {
  sessionStorage.setItem("token", inLink);
  history.replaceState(null, "", location.pathname); // out of the address bar, and of what is copied from there
}
export const token = sessionStorage.getItem("token") ?? "";

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** The answer's value and its tag; ApiError with the API's own words when it refuses. */
export async function ask(method, path, body, headers = {}) {
  const reply = await fetch(`/api/v1${path}`, {
    method,
    headers: { Authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (reply.ok) return await reply.json();
  const text = await reply.text();
  let said = text;
  try { said = JSON.parse(text).detail ?? text; } catch { /* it is in plain words */ }
  throw new ApiError(reply.status, said);
}
