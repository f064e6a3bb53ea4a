// Quantities as people read them.

export const rate = bps => bps == null ? "–" : bps >= 1e9 ? `${(bps / 1e9).toPrecision(3)} Gbit/s` : bps >= 1e6 ? `${(bps / 1e6).toPrecision(3)} Mbit/s` : `${(bps / 1e3).toPrecision(3)} kbit/s`;
export const delay = s => s == null ? "–" : `${(1e3 * s).toFixed(s < 0.01 ? 2 : 1)} ms`;
export const share = part => part == null ? "–" : `${(100 * part).toPrecision(3)} %`;
export const seconds = s => s == null ? "–" : `${s.toFixed(2)} s`;

/** Values as the API takes them, of those that it says. */
export const written = { rate: bps => `${bps}bit`, delay: s => `${s}s`, jitter: s => `${s}s`, loss: part => `${100 * part}%` };
export const FIELDS = { rate: "rate_bps", delay: "delay_s", jitter: "jitter_s", loss: "loss" };
