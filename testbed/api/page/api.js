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
  const request = { method, headers: { Authorization: `Bearer ${token}`, ...headers } };
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const reply = await fetch(`/api/v1${path}`, request);
  if (reply.ok) return await reply.json();
  throw new ApiError(reply.status, reason(await reply.text()));
}

/** The API's own words in a refusal; the text itself where another has refused. */
function reason(text) {
  try {
    return JSON.parse(text).detail ?? text;
  } catch {
    return text;
  }
}
