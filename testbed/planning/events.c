/* The simulator's inner loop: chunks over connections, from event to event. `events.py` says what comes in, and calls it.
 *
 * A connection ("flow") carries items in a fixed order, the one in which senders prefer them: flow f's are `first[f]` to
 * before `first[f + 1]`, and in each round they come once more; round k's item i is "chunk" k * items + i. One is ready
 * once what it forwards is there; the first that is ready goes next.
 *
 *     begin --> add --(all contributions)--> put: to the parent          put --> start --(sent)--> arrive --> add, accept
 *                 `--(at the root, the key whole)--> accept --> put: to the children
 *
 * Of several networks each is in force from a moment of its own on, whatever is on its way then: what is being sent goes
 * on at the new one's rates, and what was sent arrives as it would have. Flows may each be a connection under BBR, which
 * sends no faster than it believes that it may (bbr.h).
 */
#include "bbr.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define NONE (-1)
/* Rates, and times, that differ by less than this part are the same. */
#define SAME 1e-9
/* NetStorm's rule: a chunk leaves a queue of more than 2L for an auxiliary route whose first queue has less than L. */
#define AUXILIARY_QUEUE 1

/* What comes in, as `events.py` has it: the same names in the same order. */
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
/* What goes out. Of rounds and members: when each finished. Of flows: the bytes that it sent. Of chunks: when each began
 * to be sent and had been, when it came, and the pace of its connection as it began; those that an auxiliary route carried
 * have none of it. */
struct found {
    double *finished_s, *sent, *began_s, *ended_s, *came_s, *pace;
};

struct flow {
    int64_t waiting;        /* chunks that are ready */
    int64_t low;            /* from where on to look for one */
    int64_t sending;        /* the chunk that is being sent, or NONE */
    double left, sent;      /* bytes of that one; of all */
    double rate;            /* bytes a second while it sends */
    struct arrival *ring;   /* what is on its way, from the head-th arrival to before the tail-th */
    int64_t ring_size, head, tail;
    int64_t route;          /* the auxiliary route that it carries a chunk of, */
    double acknowledged_s;  /* and when that is acknowledged */
    struct bbr *connection; /* how fast it may be, or NULL */
};
struct arrival {
    double at_s;
    int64_t chunk;
};
struct member {
    double begin_s;         /* when it begins next, its round `current` */
    int64_t current;
};
struct relay {
    int64_t hop;            /* at which its chunk is */
    int64_t queued;         /* the chunk that waits for the next hop, or NONE */
};

struct simulation {
    const struct sizes *n;
    const struct network *network; /* the one in force; */
    const double *next_s;          /* when the one after it is, */
    int64_t coming;                /* of so many to come */
    const struct items *items;
    const struct work *work;
    const struct routes *routes;
    const struct found *found;
    double now;
    bool changed;           /* whether rates do */
    bool *ready, *gone;     /* of chunks */
    struct flow *flows;
    struct arrival *arrivals;
    struct member *members;
    struct relay *relays;
    int32_t *awaited;       /* of rounds, members and positions: the contributions still to come */
    int32_t *keyed;         /* of rounds and keys: the positions whose sum is not whole */
    int64_t *missing;       /* of rounds and members: the positions without a mean */
    /* Of capacities, while rates are shared: what is left, among how many flows, and whether it is used up. */
    double *room;
    int64_t *users;
    bool *full;
    int64_t *busy;          /* the flows that send; for each of them: */
    double *limits, *rates; /* its pace, and its rate */
};

/* Working memory of `max_min`, one element per capacity. */
struct filling {
    double *room;           /* bytes/s that are left */
    int64_t *users;         /* flows without a rate that draw on it */
    bool *full;             /* used up at this level */
};

/* Set rates[i] to the max-min fair rate of flow flows[i], at most limits[i]; INFINITY without capacities.
 *
 * Progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2): the rates of all flows rise together; a flow
 * keeps its rate once one of its capacities is used up, or its limit is reached. O(levels * flows * route length). */
static void max_min(const struct network *network, int64_t capacities, const int64_t *flows, int64_t count,
                    const double *limits, double *rates, struct filling its)
{
    const int64_t *draws = network->draws, *drawn = network->drawn;
    int64_t left = 0;
    for (int64_t c = 0; c < capacities; c++) {
        its.room[c] = network->capacity[c];
        its.users[c] = 0;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t f = flows[i];
        bool bounded = draws[f] < draws[f + 1];
        rates[i] = bounded ? NONE : INFINITY;
        left += bounded;
        for (int64_t at = draws[f]; at < draws[f + 1]; at++)
            its.users[drawn[at]]++;
    }
    while (left) {
        double least = INFINITY;
        for (int64_t c = 0; c < capacities; c++)
            if (its.users[c])
                least = fmin(least, its.room[c] / (double)its.users[c]);
        for (int64_t i = 0; i < count; i++)
            if (rates[i] < 0)
                least = fmin(least, limits[i]);
        for (int64_t c = 0; c < capacities; c++)
            its.full[c] = its.users[c] && its.room[c] <= least * (double)its.users[c] * (1 + SAME);
        for (int64_t i = 0; i < count; i++) {
            int64_t f = flows[i];
            if (rates[i] >= 0)
                continue;
            for (int64_t at = draws[f]; at < draws[f + 1]; at++)
                if (its.full[drawn[at]])
                    rates[i] = least;
            if (limits[i] <= least)
                rates[i] = least;
            if (rates[i] < 0)
                continue;
            left--;
            for (int64_t at = draws[f]; at < draws[f + 1]; at++) {
                its.users[drawn[at]]--;
                its.room[drawn[at]] = fmax(its.room[drawn[at]] - least, 0);
            }
        }
    }
}

/* Whether a flow carries what others leave to it, and nothing of its own: one of an auxiliary route. */
static bool is_relay(const struct simulation *s, int64_t f)
{
    return s->items->first[f] == s->items->first[f + 1];
}

static struct arrival *arrival(struct flow *flow, int64_t position)
{
    return &flow->ring[position % flow->ring_size];
}

/* The first chunk of a flow that is ready, of those that wait. */
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

/* An item may be sent. */
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

/* Member m has the mean of everything, and goes on. */
static void finish(struct simulation *s, int64_t k, int64_t m)
{
    s->found->finished_s[k * s->n->members + m] = s->now;
    if (k + 1 < s->n->rounds) {
        s->members[m].current = k + 1;
        s->members[m].begin_s = s->now + s->work->compute_s[m];
    }
}

/* Member m has the mean at a position. */
static void accept(struct simulation *s, int64_t k, int64_t m, int64_t p)
{
    int64_t *missing = &s->missing[k * s->n->members + m];
    --*missing;
    for (int64_t i = s->items->means[m * s->n->positions + p]; i != NONE; i = s->items->sibling[i])
        put(s, k, i);
    if (!*missing)
        finish(s, k, m);
}

/* One more contribution to m's sum at a position. */
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

/* A chunk has come to member m. */
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

/* A chunk has come to the end of one of its auxiliary route's flows. */
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
    }
    deliver(s, chunk, s->network->target[f]);
}

/* The acknowledgement has come back: a flow may carry another chunk, one that waits for it first. */
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

/* Move the first of what waits for a flow to auxiliary routes that are free. */
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

/* The last byte of what a flow sends is on its way. */
static void end(struct simulation *s, int64_t f)
{
    struct flow *flow = &s->flows[f];
    if (!is_relay(s, f))
        s->found->ended_s[flow->sending] = s->now;
    *arrival(flow, flow->tail++) = (struct arrival){s->now + s->network->delay_s[f], flow->sending};
    if (flow->waiting) {
        start(s, f, take(s, f));
        return;
    }
    flow->left = INFINITY;
    s->changed = true;
    if (flow->connection)
        bbr_stop(flow->connection, s->now);
    if (!is_relay(s, f)) /* which is taken until an acknowledgement comes back */
        flow->sending = NONE;
}

/* All that happens by now, but for what ends being sent. */
static void arrive(struct simulation *s)
{
    for (; s->coming && *s->next_s <= s->now; s->coming--, s->next_s++) {
        s->network++;
        s->changed = true;
    }
    for (int64_t f = 0; f < s->n->flows; f++) {
        struct flow *flow = &s->flows[f];
        while (flow->head < flow->tail && arrival(flow, flow->head)->at_s <= s->now) {
            int64_t chunk = arrival(flow, flow->head++)->chunk;
            if (is_relay(s, f)) {
                hop(s, chunk, f);
                continue;
            }
            s->found->came_s[chunk] = s->now;
            deliver(s, chunk, s->network->target[f]);
        }
    }
    for (int64_t f = 0; f < s->n->flows; f++) {
        struct bbr *connection = s->flows[f].connection;
        if (connection && connection->ends_s <= s->now) {
            bbr_trip(connection, s->now, s->flows[f].left < INFINITY);
            s->changed = true;
        }
    }
    for (int64_t f = 0; f < s->n->flows; f++)
        if (s->flows[f].acknowledged_s <= s->now) {
            s->flows[f].acknowledged_s = INFINITY;
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

/* When something arrives next, a member begins, an acknowledgement comes back from an auxiliary route, or the network
 * becomes another. */
static double next_event(const struct simulation *s)
{
    double at_s = s->coming ? *s->next_s : INFINITY;
    for (int64_t m = 0; m < s->n->members; m++)
        at_s = fmin(at_s, s->members[m].begin_s);
    for (int64_t f = 0; f < s->n->flows; f++) {
        struct flow *flow = &s->flows[f];
        at_s = fmin(at_s, flow->acknowledged_s);
        if (flow->head < flow->tail)
            at_s = fmin(at_s, arrival(flow, flow->head)->at_s);
    }
    return at_s;
}

/* When a connection's round trip is over next. */
static double next_trip(const struct simulation *s)
{
    double at_s = INFINITY;
    for (int64_t f = 0; f < s->n->flows; f++)
        if (s->flows[f].connection)
            at_s = fmin(at_s, s->flows[f].connection->ends_s);
    return at_s;
}

static double pace(const struct flow *flow)
{
    return flow->connection ? bbr_pace(flow->connection) : INFINITY;
}

/* The rates of all flows in `busy`. */
static void share(struct simulation *s, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        s->limits[i] = pace(&s->flows[s->busy[i]]);
    max_min(s->network, s->n->capacities, s->busy, count, s->limits, s->rates, (struct filling){s->room, s->users, s->full});
    for (int64_t i = 0; i < count; i++)
        s->flows[s->busy[i]].rate = s->rates[i];
}

/* From event to event, until there is none. */
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
            step = fmin(step, s->flows[s->busy[i]].left / s->flows[s->busy[i]].rate);
        if (step == INFINITY && other_s == INFINITY)
            return;
        other_s = fmin(other_s, next_trip(s));
        if (other_s <= s->now + step) {
            step = other_s - s->now;
            s->now = other_s;
        } else {
            s->now += step;
        }
        int64_t over = 0; /* which ones end is known before any of them begins another */
        for (int64_t i = 0; i < count; i++) {
            int64_t f = s->busy[i];
            struct flow *flow = &s->flows[f];
            if (flow->connection) {
                flow->connection->bytes += fmin(flow->rate * step, flow->left);
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
        arrive(s);
        relieve(s);
    }
}

/* Nothing is on its way; members are about to begin. */
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
            if (connections[f].ends_s <= 0) /* since the last simulation */
                bbr_trip(&connections[f], connections[f].ends_s, false);
        }
        ring += s->flows[f].ring_size;
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

/* Of the `networks` the first is in force at the beginning, each other one from its moment in `from_s` on. `connections` are
 * of flows, and go on from what they are; one without a round trip is none, and NULL stands for none at all. False where memory
 * is out. */
bool simulate(const struct sizes *n, const struct network *networks, const double *from_s, const struct items *items,
              const struct work *work, const struct routes *routes, const struct found *found,
              struct bbr *connections)
{
    struct simulation s = {.n = n, .network = networks, .next_s = from_s, .coming = n->networks - 1, .items = items,
                           .work = work, .routes = routes, .found = found};
    bool fits = allocate(&s.ready, n->rounds * n->items, sizeof *s.ready) &&
                allocate(&s.gone, n->rounds * n->items, sizeof *s.gone) &&
                allocate(&s.flows, n->flows, sizeof *s.flows) &&
                allocate(&s.arrivals, n->rounds * n->items + 2 * n->flows, sizeof *s.arrivals) &&
                allocate(&s.members, n->members, sizeof *s.members) &&
                allocate(&s.relays, n->routes, sizeof *s.relays) &&
                allocate(&s.awaited, n->rounds * n->members * n->positions, sizeof *s.awaited) &&
                allocate(&s.keyed, n->rounds * n->keys, sizeof *s.keyed) &&
                allocate(&s.missing, n->rounds * n->members, sizeof *s.missing) &&
                allocate(&s.room, n->capacities, sizeof *s.room) &&
                allocate(&s.users, n->capacities, sizeof *s.users) &&
                allocate(&s.full, n->capacities, sizeof *s.full) &&
                allocate(&s.busy, n->flows, sizeof *s.busy) &&
                allocate(&s.limits, n->flows, sizeof *s.limits) &&
                allocate(&s.rates, n->flows, sizeof *s.rates);
    if (fits) {
        begin(&s, connections);
        run(&s);
        for (int64_t f = 0; f < n->flows; f++)
            found->sent[f] = s.flows[f].sent;
    }
    void *arrays[] = {s.ready, s.gone, s.flows, s.arrivals, s.members, s.relays, s.awaited,
                      s.keyed, s.missing, s.room, s.users, s.full, s.busy, s.limits, s.rates};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    return fits;
}

/* The max-min fair rates of `count` flows on a network of so many capacities, all sending without a limit. False where memory is
 * out. */
bool fair_rates(const struct network *network, int64_t capacities, int64_t count, double *rates)
{
    struct filling memory = {0};
    int64_t *flows = NULL;
    double *limits = NULL;
    bool fits = allocate(&memory.room, capacities, sizeof *memory.room) &&
                allocate(&memory.users, capacities, sizeof *memory.users) &&
                allocate(&memory.full, capacities, sizeof *memory.full) &&
                allocate(&flows, count, sizeof *flows) && allocate(&limits, count, sizeof *limits);
    if (fits) {
        for (int64_t i = 0; i < count; i++) {
            flows[i] = i;
            limits[i] = INFINITY;
        }
        max_min(network, capacities, flows, count, limits, rates, memory);
    }
    free(memory.room), free(memory.users), free(memory.full), free(flows), free(limits);
    return fits;
}
