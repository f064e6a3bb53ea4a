// The places of sites: on a map if all have positions, otherwise as a graph in which distance follows delay.

/** What stays free at the sides, for labels, and above and below, in pixels; on small maps this part of them. */
const SIDE = 110, EDGE = 50, MOST_FREE = 0.12;

/** Sites nearer to each other than this on the map, in pixels, are moved apart, so that what joins them is seen. */
const APART = 56;

/** Sites of one town need no closer look than this: the coast is nowhere near. */
const LARGEST_SCALE = 4000;

/**
 * Each site's place by its name, in pixels, on a map of this size, and the coast's outline where there is one (a
 * promise; null in a graph).
 */
export function placesOf(state, names, width, height) {
  const side = Math.min(SIDE, MOST_FREE * width), edge = Math.min(EDGE, MOST_FREE * height);
  const room = [[side, edge], [width - side, height - edge]];
  const all = names.length > 0 && names.every(name => state.sites[name].position);
  return all ? onMap(state, names, room) : asGraph(state, names, room);
}

function onMap(state, names, room) {
  const coordinates = names.map(name => state.sites[name].position.toReversed());
  const points = { type: "MultiPoint", coordinates };
  const projection = d3.geoNaturalEarth1().rotate([-middleOf(coordinates.map(([longitude]) => longitude)), 0]);
  projection.fitExtent(room, points);
  if (!(projection.scale() <= LARGEST_SCALE)) { // infinite where all sites are at one place
    projection.scale(LARGEST_SCALE).translate([0, 0]);
    const [[left, top], [right, bottom]] = d3.geoPath(projection).bounds(points);
    const [[x, y], [u, v]] = room;
    projection.translate([(x + u - left - right) / 2, (y + v - top - bottom) / 2]);
  }
  const outline = coast().then(land => d3.geoPath(projection)(land));
  const drawn = movedApart(coordinates.map(projection));
  return { places: new Map(names.map((name, place) => [name, drawn[place]])), outline };
}

/** The same points, the crowded ones moved as little as makes room. */
function movedApart(points) {
  const nodes = points.map(([x, y]) => ({ x, y, atX: x, atY: y }));
  d3.forceSimulation(nodes)
    .force("apart", d3.forceCollide(APART / 2).iterations(4))
    .force("x", d3.forceX(node => node.atX).strength(0.1))
    .force("y", d3.forceY(node => node.atY).strength(0.1))
    .stop()
    .tick(120);
  return nodes.map(({ x, y }) => [x, y]);
}

/** The meridian to look from: opposite to the middle of the widest gap between sites, so that none is cut off. */
function middleOf(longitudes) {
  const sorted = longitudes.toSorted((one, other) => one - other);
  const gaps = sorted.map((from, place) => [(sorted[place + 1] ?? sorted[0] + 360) - from, from]);
  const [gap, from] = gaps.reduce((widest, one) => one[0] > widest[0] ? one : widest);
  return from + gap / 2 + 180;
}

function asGraph(state, names, [[left, top], [right, bottom]]) {
  const nodes = names.map((id, place) => ({ id, x: 200 * Math.cos(place), y: 200 * Math.sin(place) }));
  const pairs = Object.values(state.links)
    .filter(({ source, target }) => names.includes(source) && names.includes(target)) // not those of a swap under way
    .map(({ source, target, delay_s }) => ({ source, target, delay_s }));
  const apart = pair => 80 + 1500 * Math.min(pair.delay_s, 0.2);
  d3.forceSimulation(nodes)
    .force("link", d3.forceLink(pairs).id(node => node.id).distance(apart))
    .force("apart", d3.forceManyBody().strength(-900))
    .force("x", d3.forceX(0))
    .force("y", d3.forceY(0))
    .stop()
    .tick(200);
  const x = d3.scaleLinear(d3.extent(nodes, node => node.x), [left, right]);
  const y = d3.scaleLinear(d3.extent(nodes, node => node.y), [top, bottom]);
  return { places: new Map(nodes.map(node => [node.id, [x(node.x), y(node.y)]])), outline: null };
}

/** An arc from one place to another, to the left of the way, so that both directions are seen. */
export function bow([x, y], [u, v], part) {
  const cx = (x + u) / 2 + part * 2 * (v - y), cy = (y + v) / 2 - part * 2 * (u - x);
  return `M${x},${y} Q${cx},${cy} ${u},${v}`;
}

let land = null;
async function coast() {
  land ??= fetch("/page/vendor/land-110m.json").then(reply => reply.json());
  const atlas = await land;
  return topojson.feature(atlas, atlas.objects.land);
}
