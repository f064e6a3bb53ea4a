// The traffic of each link: what arrived in the last second or so.

const LEAST_S = 0.9;
const before = new Map();
const used = new Map();

/**
 * Record the counters at a moment, in seconds. A counter goes back when the user moves in a recording, or when a link
 * was made again.
 */
export function count(traffic, at) {
  for (const name of before.keys()) {
    if (name in traffic) continue; // a swap removed the link
    before.delete(name);
    used.delete(name);
  }
  for (const [name, { bytes }] of Object.entries(traffic)) {
    const earlier = before.get(name);
    const apart = earlier ? at - earlier.at : 0;
    const grew = earlier && bytes >= earlier.bytes;
    if (grew && apart > 0 && apart < LEAST_S) continue;
    if (earlier && !grew) used.delete(name);
    if (grew && apart >= LEAST_S) used.set(name, 8 * (bytes - earlier.bytes) / apart);
    before.set(name, { at, bytes });
  }
}

/** The recent traffic of a link in bit/s; undefined before two counts. */
export const carried = name => used.get(name);

/** The recent traffic of all links together in bit/s. */
export const total = () => [...used.values()].reduce((sum, bps) => sum + bps, 0);
