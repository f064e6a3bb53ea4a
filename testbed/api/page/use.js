// How much of each link is used: what arrived in the last second or so.

const LEAST_S = 0.9;
const before = new Map();
const used = new Map();

/**
 * Take note of counters at a moment, in seconds. One that goes back is of a recording that was moved, or of a link that
 * was made anew.
 */
export function count(traffic, at) {
  for (const [name, { bytes }] of Object.entries(traffic)) {
    const earlier = before.get(name);
    const apart = earlier ? at - earlier.at : 0;
    const grew = earlier && bytes >= earlier.bytes;
    if (grew && apart > 0 && apart < LEAST_S) continue;
    if (grew && apart >= LEAST_S) used.set(name, 8 * (bytes - earlier.bytes) / apart);
    before.set(name, { at, bytes });
  }
}

/** Bit/s that a link carried lately; undefined where nobody has counted yet. */
export const carried = name => used.get(name);

/** Bit/s over all links together. */
export const total = () => [...used.values()].reduce((sum, bps) => sum + bps, 0);
