// Helpers for elements.

export const at = id => document.getElementById(id);

/** An element with a text. */
export const element = (tag, text = "", kind = "") =>
  Object.assign(document.createElement(tag), { textContent: text, className: kind });

/** Write a text where it differs, so that the browser does not draw an equal text again. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Wrap `work` so that it runs at most once in `apart` milliseconds, and the last time with the newest arguments. */
export function paced(work, apart) {
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
