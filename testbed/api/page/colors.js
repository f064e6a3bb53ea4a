// The colours of the use of links, and of trees.

const dark = matchMedia("(prefers-color-scheme: dark)");

/** From an idle link's to a full one's; each at a contrast of 3 or more to the map. */
const USE = {
  light: ["#6f8497", "#2f6fd6", "#8a2fb8", "#d01b4a"],
  dark: ["#6f8499", "#5c9dff", "#c084fc", "#ff6b8b"],
};
const TREES = {
  light: ["#0b6e4f", "#b3450b", "#6b3fa0", "#9c1c5a", "#54640b", "#0d6580"],
  dark: ["#5fd6a8", "#ffab6b", "#c4a5ff", "#ff94c2", "#cfdd6a", "#6fd3f2"],
};

const listed = of => of[dark.matches ? "dark" : "light"];

let between = null;
dark.addEventListener("change", () => { between = null; });

/** The colour of a link by the share of its rate that is used. */
export function colorOfUse(part) {
  between ??= d3.piecewise(d3.interpolateRgb, listed(USE));
  return between(Math.min(Math.max(part ?? 0, 0), 1));
}

/** The same from nothing to all, as a background. */
export const scaleOfUse = () => `linear-gradient(90deg, ${listed(USE).join(", ")})`;

export const colorOfTree = number => listed(TREES)[number % TREES.light.length];

/** A colour of the style sheet, by its variable's name. */
export const named = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Call `again` whenever the user changes between the light and the dark theme. */
export const onScheme = again => dark.addEventListener("change", again);
