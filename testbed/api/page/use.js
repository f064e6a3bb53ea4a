// How much of each link is used: what arrived in the last second or so, of its rate in force.

const LEAST_S = 0.9;
const before = new Map();
const used = new Map();

/** Take note of counters at a moment, in seconds; one that goes back is of a recording that was moved, or a link made anew. */
export function count(traffic, at) {
  for (const [name, counters] of Object.entries(traffic)) {
    const earlier = before.get(name);
    const apart = earlier ? at - earlier.at : 0;
    if (earlier && apart > 0 && apart < LEAST_S && counters.bytes >= earlier.bytes) continue;
    if (earlier && apart >= LEAST_S && counters.bytes >= earlier.bytes) used.set(name, 8 * (counters.bytes - earlier.bytes) / apart);
    before.set(name, { at, bytes: counters.bytes });
  }
}

/** Bit/s that a link carried lately. */
export const carried = name => used.get(name);

export const total = () => [...used.values()].reduce((sum, bps) => sum + bps, 0);

const scale = () => d3.scaleSequential(d3.interpolateTurbo).domain([0, 1]).clamp(true);
let color;

/** The colour of a link of which this part is used. */
export const colorOf = part => (color ??= scale())(0.12 + 0.8 * Math.min(part ?? 0, 1));
