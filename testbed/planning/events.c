/* The simulator's inner loop: chunks over connections, from event to event. `events.py` calls it and explains its input.
 *
 * A connection ("flow") carries items in a fixed order, the one in which its sender prefers them: flow f carries the items
 * `first[f]` to before `first[f + 1]`, in each round again; item i of round k is "chunk" k * items + i. A chunk is ready once
 * the data that it forwards has arrived; a flow sends its first ready chunk next.
 *
 *     begin --> add --(all contributions)--> put: to the parent          put --> start --(sent)--> arrive --> add, accept
 *                 `--(at the root, the key whole)--> accept --> put: to the children
 *
 * Each of several networks is in force from its own moment on. A chunk that is being sent then continues at the new
 * network's rates; a chunk that was sent arrives as before. A flow may be a connection under BBR, which sends no faster than
 * its pace (bbr.h).
 */
#include "bbr.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define NONE (-1)
/* Rates, and times, that differ by less than this part are equal. */
#define SAME 1e-9
/* NetStorm's L (arXiv 2404.11352): a chunk leaves a queue of more than 2L for an auxiliary route whose first queue is below L. */
#define AUXILIARY_QUEUE 1

/* The input; `events.py` has the same names in the same order, and explains them. */
struct sizes {
    int64_t flows, capacities, items, members, positions, keys, routes, rounds, networks;
};
struct network {
    const int64_t *target;
    const double *delay_s;
    const int64_t *draws, *drawn;
    const double *capacity;
};
struct items {
    const int64_t *first, *flow;
    const double *size;
    const int64_t *position, *is_mean, *partial, *means, *sibling;
};
struct work {
    const int64_t *awaited, *key, *key_first;
    const double *begin_s, *compute_s;
};
struct routes {
    const int64_t *relieves, *direct, *first, *hops;
};
/* The output, likewise. */
struct found {
    double *finished_s, *sent, *began_s, *ended_s, *came_s, *pace;
};

struct flow {
    int64_t waiting;        /* chunks that are ready */
    int64_t low;            /* the position from which on to look for a ready chunk */
    int64_t sending;        /* the chunk that is being sent, or NONE */
    double left, sent;      /* bytes of that chunk that are left; bytes of all chunks so far */
    double rate;            /* bytes a second while it sends */
    struct arrival *ring;   /* chunks under way, from the head-th arrival to before the tail-th */
    int64_t ring_size, head, tail;
    int64_t route;          /* the auxiliary route whose chunk it carries, */
    double acknowledged_s;  /* and when that chunk is acknowledged */
    struct bbr *connection; /* limits its rate, or NULL */
};
struct arrival {
    double at_s;
    int64_t chunk;
};
struct member {
    double begin_s;         /* when it begins its next round, */
    int64_t current;        /* whose number this is */
};
struct relay {
    int64_t hop;            /* the position of its chunk on the route */
    int64_t queued;         /* the chunk that waits for the next hop, or NONE */
};

/* Working memory of `max_min`. */
struct filling {
    double *room;           /* for each capacity, bytes/s that are left, */
    int64_t *users;         /* flows without a rate that draw on it, */
    bool *full;             /* and whether it is used up at this level */
    int64_t *used;          /* the capacities that have users; for each of these, */
    double *each;           /* bytes/s that are left for one user */
    int64_t *open;          /* the positions of the flows without a rate */
};

struct simulation {
    const struct sizes *n;
    const struct network *network; /* the network in force */
    const double *next_s;          /* when the next network comes into force */
    int64_t coming;                /* the number of later networks */
    const struct items *items;
    const struct work *work;
    const struct routes *routes;
    const struct found *found;
    double now;
    bool changed;           /* rates must be shared again */
    bool connected;         /* some flows are connections under BBR */
    bool at_once;           /* a chunk that was sent now arrives now */
    bool *ready, *gone;     /* for each chunk */
    struct flow *flows;
    double *due_s;          /* for each flow, when its next chunk arrives or its route's chunk is acknowledged */
    struct arrival *arrivals;
    struct member *members;
    struct relay *relays;
    int32_t *awaited;       /* for each round, member and position: contributions still to come */
    int32_t *keyed;         /* for each round and key: positions whose sum is not complete */
    int64_t *missing;       /* for each round and member: positions without a mean */
    struct filling filling;
    int64_t *busy;          /* the flows that send; for each of them: */
    double *limits, *rates; /* its pace, and its rate */
};

/* Return the lesser, or the greater, of two numbers. `fmin` and `fmax`, which also take NaN, are calls of the library. */
static double lesser(double a, double b)
{
    return b < a ? b : a;
}

static double greater(double a, double b)
{
    return b > a ? b : a;
}

/* Set rates[i] to the max-min fair rate of flow flows[i], at most limits[i]; INFINITY without capacities.
 *
 * Progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2): the rates of all flows rise together; a flow
 * keeps its rate once one of its capacities is used up, or its limit is reached. O(levels * flows * route length). */
void max_min(const struct network *network, int64_t capacities, const int64_t *flows, int64_t count, const double *limits,
             double *rates, const struct filling *memory)
{
    struct filling its = *memory;
    const int64_t *draws = network->draws, *drawn = network->drawn;
    int64_t left = 0, used = 0;
    for (int64_t c = 0; c < capacities; c++) {
        its.room[c] = network->capacity[c];
        its.users[c] = 0;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t f = flows[i];
        rates[i] = INFINITY;
        if (draws[f] < draws[f + 1])
            its.open[left++] = i;
        for (int64_t at = draws[f]; at < draws[f + 1]; at++)
            if (!its.users[drawn[at]]++)
                its.used[used++] = drawn[at];
    }
    while (left) {
        double least = INFINITY;
        int64_t kept = 0;
        for (int64_t at = 0; at < used; at++) {
            int64_t c = its.used[at];
            if (!its.users[c])
                continue;
            its.each[kept] = its.room[c] / (double)its.users[c];
            least = lesser(least, its.each[kept]);
            its.used[kept++] = c;
        }
        used = kept;
        for (int64_t i = 0; i < left; i++)
            least = lesser(least, limits[its.open[i]]);
        for (int64_t at = 0; at < used; at++)
            its.full[its.used[at]] = its.each[at] <= least * (1 + SAME);
        int64_t still = 0;
        for (int64_t i = 0; i < left; i++) {
            int64_t own = its.open[i], f = flows[own];
            bool ends = limits[own] <= least;
            for (int64_t at = draws[f]; at < draws[f + 1]; at++)
                ends |= its.full[drawn[at]];
            if (!ends) {
                its.open[still++] = own;
                continue;
            }
            rates[own] = least;
            for (int64_t at = draws[f]; at < draws[f + 1]; at++) {
                its.users[drawn[at]]--;
                its.room[drawn[at]] = greater(its.room[drawn[at]] - least, 0);
            }
        }
        left = still;
    }
}

/* Return whether a flow belongs to an auxiliary route: it has no items of its own. */
static bool is_relay(const struct simulation *s, int64_t f)
{
    return s->items->first[f] == s->items->first[f + 1];
}

static struct arrival *arrival(struct flow *flow, int64_t position)
{
    return &flow->ring[position % flow->ring_size];
}

/* Set `due_s` of a flow, after its arrivals or the acknowledgement of its chunk have changed. */
static void note_due(struct simulation *s, int64_t f)
{
    struct flow *flow = &s->flows[f];
    double came_s = flow->head < flow->tail ? arrival(flow, flow->head)->at_s : INFINITY;
    s->due_s[f] = lesser(flow->acknowledged_s, came_s);
}

/* Take the first ready chunk of a flow that has waiting chunks. */
static int64_t take(struct simulation *s, int64_t f)
{
    struct flow *flow = &s->flows[f];
    int64_t first = s->items->first[f], own = s->items->first[f + 1] - first;
    bool low = true;
    for (int64_t at = flow->low;; at++) {
        int64_t chunk = at / own * s->n->items + first + at % own;
        if (s->gone[chunk]) {
            flow->low += low;
        } else if (s->ready[chunk]) {
            s->gone[chunk] = true;
            flow->waiting--;
            return chunk;
        } else {
            low = false;
        }
    }
}

static void start(struct simulation *s, int64_t f, int64_t chunk)
{
    struct flow *flow = &s->flows[f];
    if (flow->connection && flow->left == INFINITY)
        bbr_start(flow->connection, s->now);
    flow->sending = chunk;
    flow->left = s->items->size[chunk % s->n->items];
    flow->sent += flow->left;
    if (is_relay(s, f))
        return;
    s->found->began_s[chunk] = s->now;
    s->found->pace[chunk] = flow->connection ? bbr_pace(flow->connection) : 0.0;
}

/* Make an item ready to be sent. */
static void put(struct simulation *s, int64_t k, int64_t i)
{
    int64_t f = s->items->flow[i];
    s->ready[k * s->n->items + i] = true;
    s->flows[f].waiting++;
    if (s->flows[f].sending == NONE) {
        start(s, f, take(s, f));
        s->changed = true;
    }
}

/* Record that member m has the whole mean; plan its next round. */
static void finish(struct simulation *s, int64_t k, int64_t m)
{
    s->found->finished_s[k * s->n->members + m] = s->now;
    if (k + 1 < s->n->rounds) {
        s->members[m].current = k + 1;
        s->members[m].begin_s = s->now + s->work->compute_s[m];
    }
}

/* Give member m the mean at a position. */
static void accept(struct simulation *s, int64_t k, int64_t m, int64_t p)
{
    int64_t *missing = &s->missing[k * s->n->members + m];
    --*missing;
    for (int64_t i = s->items->means[m * s->n->positions + p]; i != NONE; i = s->items->sibling[i])
        put(s, k, i);
    if (!*missing)
        finish(s, k, m);
}

/* Add a contribution to m's sum at a position. */
static void add(struct simulation *s, int64_t k, int64_t m, int64_t p)
{
    int64_t at = m * s->n->positions + p;
    if (--s->awaited[k * s->n->members * s->n->positions + at])
        return;
    if (s->items->partial[at] != NONE) {
        put(s, k, s->items->partial[at]);
        return;
    }
    int64_t key = s->work->key[p];
    if (--s->keyed[k * s->n->keys + key])
        return;
    for (int64_t q = s->work->key_first[key]; q < s->n->positions && s->work->key[q] == key; q++)
        accept(s, k, m, q);
}

/* Give member m a chunk that has arrived. */
static void deliver(struct simulation *s, int64_t chunk, int64_t m)
{
    int64_t k = chunk / s->n->items, i = chunk % s->n->items;
    (s->items->is_mean[i] ? accept : add)(s, k, m, s->items->position[i]);
}

static void relay(struct simulation *s, int64_t f, int64_t r, int64_t chunk)
{
    s->flows[f].route = r;
    start(s, f, chunk);
    s->changed = true;
}

/* Forward a chunk that has arrived at the end of a flow of its auxiliary route. */
static void hop(struct simulation *s, int64_t chunk, int64_t f)
{
    const struct routes *routes = s->routes;
    int64_t r = s->flows[f].route, at = routes->first[r] + ++s->relays[r].hop;
    if (at < routes->first[r + 1]) {
        if (s->flows[routes->hops[at]].sending == NONE)
            relay(s, routes->hops[at], r, chunk);
        else
            s->relays[r].queued = chunk;
        return;
    }
    double at_s = s->now;
    for (int64_t back = routes->first[r + 1] - 1; back >= routes->first[r]; back--) {
        at_s += s->network->delay_s[routes->hops[back]];
        s->flows[routes->hops[back]].acknowledged_s = at_s;
        note_due(s, routes->hops[back]);
    }
    deliver(s, chunk, s->network->target[f]);
}

/* Free a flow whose chunk was acknowledged for another chunk; one that waits for the flow comes first. */
static void free_relay(struct simulation *s, int64_t f)
{
    s->flows[f].sending = NONE;
    for (int64_t r = 0; r < s->n->routes; r++) {
        int64_t chunk = s->relays[r].queued;
        if (chunk != NONE && s->routes->hops[s->routes->first[r] + s->relays[r].hop] == f) {
            s->relays[r].queued = NONE;
            relay(s, f, r, chunk);
            return;
        }
    }
}

/* Move the first waiting chunks of busy flows to free auxiliary routes. */
static void relieve(struct simulation *s)
{
    for (int64_t r = 0; r < s->n->routes; r++) {
        int64_t f = s->routes->relieves[r], direct = s->routes->direct[r], first = s->routes->hops[s->routes->first[r]];
        int64_t queued = direct == NONE ? 0 : s->flows[direct].waiting;
        if (s->flows[f].waiting > 2 * AUXILIARY_QUEUE && queued < AUXILIARY_QUEUE && s->flows[first].sending == NONE) {
            s->relays[r].hop = 0;
            relay(s, first, r, take(s, f));
        }
    }
}

/* Record that the last byte of a flow's chunk was sent. */
static void end(struct simulation *s, int64_t f)
{
    struct flow *flow = &s->flows[f];
    if (!is_relay(s, f))
        s->found->ended_s[flow->sending] = s->now;
    double came_s = s->now + s->network->delay_s[f];
    *arrival(flow, flow->tail++) = (struct arrival){came_s, flow->sending};
    s->at_once |= came_s <= s->now;
    note_due(s, f);
    if (flow->waiting) {
        start(s, f, take(s, f));
        return;
    }
    flow->left = INFINITY;
    s->changed = true;
    if (flow->connection)
        bbr_stop(flow->connection, s->now);
    if (!is_relay(s, f)) /* a relay stays taken until an acknowledgement comes back */
        flow->sending = NONE;
}

/* Handle all events up to now, except the ends of sending. */
static void arrive(struct simulation *s)
{
    for (; s->coming && *s->next_s <= s->now; s->coming--, s->next_s++) {
        s->network++;
        s->changed = true;
    }
    for (int64_t f = 0; f < s->n->flows; f++) {
        struct flow *flow = &s->flows[f];
        if (s->due_s[f] > s->now)
            continue;
        while (flow->head < flow->tail && arrival(flow, flow->head)->at_s <= s->now) {
            int64_t chunk = arrival(flow, flow->head++)->chunk;
            note_due(s, f);
            if (is_relay(s, f)) {
                hop(s, chunk, f);
                continue;
            }
            s->found->came_s[chunk] = s->now;
            deliver(s, chunk, s->network->target[f]);
        }
    }
    for (int64_t f = 0; s->connected && f < s->n->flows; f++) {
        struct bbr *connection = s->flows[f].connection;
        if (connection && connection->ends_s <= s->now) {
            bbr_trip(connection, s->now, s->flows[f].left < INFINITY);
            s->changed = true;
        }
    }
    for (int64_t f = 0; s->n->routes && f < s->n->flows; f++)
        if (s->flows[f].acknowledged_s <= s->now) {
            s->flows[f].acknowledged_s = INFINITY;
            note_due(s, f);
            free_relay(s, f);
        }
    for (int64_t m = 0; m < s->n->members; m++)
        if (s->members[m].begin_s <= s->now) {
            int64_t k = s->members[m].current;
            s->members[m].begin_s = INFINITY;
            if (!s->missing[k * s->n->members + m]) /* a model without elements */
                finish(s, k, m);
            for (int64_t p = 0; p < s->n->positions; p++)
                add(s, k, m, p);
        }
}

/* Return when the next chunk or acknowledgement arrives, a member begins, or another network comes into force. */
static double next_event(const struct simulation *s)
{
    double at_s = s->coming ? *s->next_s : INFINITY;
    for (int64_t m = 0; m < s->n->members; m++)
        at_s = lesser(at_s, s->members[m].begin_s);
    for (int64_t f = 0; f < s->n->flows; f++)
        at_s = lesser(at_s, s->due_s[f]);
    return at_s;
}

/* Return when the next round trip of a connection ends. */
static double next_trip(const struct simulation *s)
{
    double at_s = INFINITY;
    for (int64_t f = 0; s->connected && f < s->n->flows; f++)
        if (s->flows[f].connection)
            at_s = lesser(at_s, s->flows[f].connection->ends_s);
    return at_s;
}

static double pace(const struct flow *flow)
{
    return flow->connection ? bbr_pace(flow->connection) : INFINITY;
}

/* Set the rates of the first `count` flows in `busy`. */
static void share(struct simulation *s, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        s->limits[i] = pace(&s->flows[s->busy[i]]);
    max_min(s->network, s->n->capacities, s->busy, count, s->limits, s->rates, &s->filling);
    for (int64_t i = 0; i < count; i++)
        s->flows[s->busy[i]].rate = s->rates[i];
}

/* Go from event to event until there is none. */
static void run(struct simulation *s)
{
    for (int64_t count = 0;;) {
        if (s->changed) {
            count = 0;
            for (int64_t f = 0; f < s->n->flows; f++)
                if (s->flows[f].left < INFINITY)
                    s->busy[count++] = f;
            share(s, count);
            s->changed = false;
        }
        double step = INFINITY, other_s = next_event(s);
        for (int64_t i = 0; i < count; i++)
            step = lesser(step, s->flows[s->busy[i]].left / s->flows[s->busy[i]].rate);
        if (step == INFINITY && other_s == INFINITY)
            return;
        other_s = lesser(other_s, next_trip(s));
        if (other_s <= s->now + step) {
            step = other_s - s->now;
            s->now = other_s;
        } else {
            s->now += step;
        }
        int64_t over = 0; /* the flows that end are known before any of them begins another chunk */
        for (int64_t i = 0; i < count; i++) {
            int64_t f = s->busy[i];
            struct flow *flow = &s->flows[f];
            if (flow->connection) {
                flow->connection->bytes += lesser(flow->rate * step, flow->left);
                flow->connection->paused += step > 0 && flow->rate == 0;
            }
            if (flow->left / flow->rate <= step * (1 + SAME)) {
                s->busy[i] = s->busy[over];
                s->busy[over++] = f;
            } else if (flow->rate < INFINITY) {
                flow->left -= flow->rate * step;
            }
        }
        for (int64_t i = 0; i < over; i++)
            end(s, s->busy[i]);
        if (other_s <= s->now || s->at_once || s->connected)
            arrive(s);
        s->at_once = false;
        relieve(s);
    }
}

/* Set the state before the first event. */
static void begin(struct simulation *s, struct bbr *connections)
{
    const struct sizes *n = s->n;
    struct arrival *ring = s->arrivals;
    for (int64_t f = 0; f < n->flows; f++) {
        int64_t carried = n->rounds * (s->items->first[f + 1] - s->items->first[f]);
        s->flows[f] = (struct flow){.sending = NONE, .left = INFINITY, .ring = ring,
                                    .ring_size = carried > 2 ? carried : 2, .route = NONE, .acknowledged_s = INFINITY};
        if (connections && connections[f].trip_s > 0) {
            s->flows[f].connection = &connections[f];
            if (connections[f].ends_s <= 0) /* its round trip ended since the last simulation */
                bbr_trip(&connections[f], connections[f].ends_s, false);
        }
        ring += s->flows[f].ring_size;
        s->due_s[f] = INFINITY;
    }
    for (int64_t m = 0; m < n->members; m++)
        s->members[m].begin_s = s->work->begin_s[m];
    for (int64_t r = 0; r < n->routes; r++)
        s->relays[r].queued = NONE;
    for (int64_t k = 0; k < n->rounds; k++) {
        for (int64_t at = 0; at < n->members * n->positions; at++)
            s->awaited[k * n->members * n->positions + at] = (int32_t)s->work->awaited[at];
        for (int64_t p = 0; p < n->positions; p++)
            s->keyed[k * n->keys + s->work->key[p]]++;
        for (int64_t m = 0; m < n->members; m++) {
            s->missing[k * n->members + m] = n->positions;
            s->found->finished_s[k * n->members + m] = INFINITY;
        }
    }
    for (int64_t c = 0; c < n->rounds * n->items; c++)
        s->found->began_s[c] = s->found->ended_s[c] = s->found->came_s[c] = s->found->pace[c] = NAN;
}

static bool allocate(void *array, int64_t count, size_t size)
{
    return (*(void **)array = calloc((size_t)count + 1, size)) != NULL;
}

/* Simulate rounds. The first of `networks` is in force at the beginning, each other one from its moment in `from_s` on.
 * `connections`, one for each flow, are updated; NULL, or a `trip_s` of 0, stands for no connection. Returns false if out of
 * memory. */
bool simulate(const struct sizes *n, const struct network *networks, const double *from_s, const struct items *items,
              const struct work *work, const struct routes *routes, const struct found *found,
              struct bbr *connections)
{
    struct simulation s = {.n = n, .network = networks, .next_s = from_s, .coming = n->networks - 1, .items = items,
                           .work = work, .routes = routes, .found = found, .connected = connections != NULL};
    bool fits = allocate(&s.ready, n->rounds * n->items, sizeof *s.ready) &&
                allocate(&s.gone, n->rounds * n->items, sizeof *s.gone) &&
                allocate(&s.flows, n->flows, sizeof *s.flows) &&
                allocate(&s.due_s, n->flows, sizeof *s.due_s) &&
                allocate(&s.arrivals, n->rounds * n->items + 2 * n->flows, sizeof *s.arrivals) &&
                allocate(&s.members, n->members, sizeof *s.members) &&
                allocate(&s.relays, n->routes, sizeof *s.relays) &&
                allocate(&s.awaited, n->rounds * n->members * n->positions, sizeof *s.awaited) &&
                allocate(&s.keyed, n->rounds * n->keys, sizeof *s.keyed) &&
                allocate(&s.missing, n->rounds * n->members, sizeof *s.missing) &&
                allocate(&s.filling.room, n->capacities, sizeof *s.filling.room) &&
                allocate(&s.filling.users, n->capacities, sizeof *s.filling.users) &&
                allocate(&s.filling.full, n->capacities, sizeof *s.filling.full) &&
                allocate(&s.filling.used, n->capacities, sizeof *s.filling.used) &&
                allocate(&s.filling.each, n->capacities, sizeof *s.filling.each) &&
                allocate(&s.filling.open, n->flows, sizeof *s.filling.open) &&
                allocate(&s.busy, n->flows, sizeof *s.busy) &&
                allocate(&s.limits, n->flows, sizeof *s.limits) &&
                allocate(&s.rates, n->flows, sizeof *s.rates);
    if (fits) {
        begin(&s, connections);
        run(&s);
        for (int64_t f = 0; f < n->flows; f++)
            found->sent[f] = s.flows[f].sent;
    }
    void *arrays[] = {s.ready, s.gone, s.flows, s.due_s, s.arrivals, s.members, s.relays, s.awaited, s.keyed, s.missing,
                      s.filling.room, s.filling.users, s.filling.full, s.filling.used, s.filling.each, s.filling.open,
                      s.busy, s.limits, s.rates};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    return fits;
}
