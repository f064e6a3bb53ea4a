// Quantities as people read them, and as the API takes them.

const NOTHING = "–";

const PREFIXES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

function prefixed(value, unit) {
  if (value == null) return NOTHING;
  const rounded = Number(value.toPrecision(3));  // 999,999 is 1.00 M
  const [factor, prefix] = PREFIXES.find(([least]) => rounded >= least) ?? [1, ""];
  return `${prefix ? figures(value / factor) : Math.round(value)} ${prefix}${unit}`;
}

/** Three figures, without an exponent above 999. */
const figures = value => value >= 100 ? Math.round(value).toString() : value.toPrecision(3);

export const rate = bps => prefixed(bps, "bit/s");
export const size = bytes => prefixed(bytes, "B");

/** In Mbit/s, where a heading says so. */
export const mbit = bps => bps == null ? NOTHING : figures(bps / 1e6);

export const delay = s => s == null ? NOTHING : `${(1e3 * s).toFixed(s < 0.01 ? 2 : 1)} ms`;
export const share = part => part == null ? NOTHING : `${(100 * part).toPrecision(3)} %`;
/** In milliseconds below 0.1 s, where two digits after the point would be too few. */
export const seconds = s => s == null ? NOTHING : s > 0 && s < 0.1 ? delay(s) : `${s.toFixed(2)} s`;

/** A loss: small ones, such as mean squared errors, have more digits after the point. */
export function loss(value) {
  if (value == null) return NOTHING;
  return value !== 0 && Math.abs(value) < 0.1 ? value.toPrecision(3) : value.toFixed(3);
}

/** A number with its noun: 1 link, 2 links. */
export const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** Minutes and seconds, 2:05; from an hour on 1:02:05. */
export function clock(s) {
  const whole = Math.max(0, Math.floor(s)), two = value => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** A link's values by the names that patches have for them, and by those that its state has. */
export const FIELDS = { rate: "rate_bps", delay: "delay_s", jitter: "jitter_s", loss: "loss" };

/** A link's values for people, and as patches write them. */
export const shown = { rate, delay, jitter: delay, loss: share };
export const written = {
  rate: bps => `${bps}bit`,
  delay: s => `${s}s`,
  jitter: s => `${s}s`,
  loss: part => `${100 * part}%`,
};
