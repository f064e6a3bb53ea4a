/* The model of a link, and the release of packets that are due by it. */
#define _GNU_SOURCE
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <stdlib.h>

#include "core.h"

/* The rounding error in bytes if a frame takes several moments whose bytes are not a whole number. */
static const double ROUNDING = 1e-6;

/* Uniform in [0, 1): splitmix64, one state a link, so links do not disturb each other's sequence. */
double chance(struct link *l)
{
    uint64_t z = l->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static struct packet *packet_at(struct link *l, uint32_t position)
{
    return &l->ring[position & (l->size - 1)];
}

/* The next packet to serve, or NULL. Positions wrap at 2^32; the ring's size is a power of two. */
struct packet *first_in_queue(struct link *l)
{
    return l->serving != l->tail ? packet_at(l, l->serving) : NULL;
}

/* Move the first packet of the queue, served at the model's time, into the pipe. */
static void put_into_pipe(struct link *l, struct packet *p)
{
    double jitter = l->jitter > 0 ? l->jitter * (2 * chance(l) - 1) : 0;
    p->delay = l->delay;
    p->release = l->clock + fmax(l->delay + jitter, 0);
    if (!l->reorder)
        p->release = fmax(l->last_release, p->release);
    l->last_release = fmax(l->last_release, p->release);
    l->backlog -= p->wire;
    l->serving++;
    choose_next(l);
}

/* Drop the first packet of the queue, which keeps its place until it would be released. */
void drop_first(struct link *l)
{
    struct packet *p = first_in_queue(l);
    l->count.dropped_queue += p->frames;
    give_verdict(l, NFQNL_MSG_VERDICT, p->id, NF_DROP);
    p->passed = true;
    l->backlog -= p->wire;
    l->serving++;
}

/* Serve packets at the link's rate until `now`. */
static void serve(struct link *l, double now)
{
    for (struct packet *p; (p = first_in_queue(l));) {
        double needed = l->rate > 0 ? p->left / l->rate : INFINITY;
        if (l->clock + needed > now) {
            p->left -= (now - l->clock) * l->rate;
            p->service += now - l->clock;
            break;
        }
        l->clock += needed;
        p->service += needed;
        put_into_pipe(l, p);
    }
    l->clock = now;
}

static double period(const struct schedule *s)
{
    return (double)s->moments[s->count - 1] * 1e-3;
}

/* The schedule's next moment; INFINITY when it is over. */
static double next_moment(const struct schedule *s)
{
    return s->next < s->count ? s->began + (double)s->moments[s->next] * 1e-3 : INFINITY;
}

static void take_moment(struct schedule *s)
{
    if (++s->next == s->count && s->end == LOOP) {
        s->began += period(s);
        s->next = 0;
    }
}

/* Skip the moments up to `now`, by search: after a long idle time there may be many. */
void pass_over(struct schedule *s, double now)
{
    if (s->end == LOOP && now - s->began >= period(s)) {
        s->began += floor((now - s->began) / period(s)) * period(s);
        s->next = 0;
    }
    for (size_t beyond = s->count; s->next < beyond;) {
        size_t middle = s->next + (beyond - s->next) / 2;
        if (s->began + (double)s->moments[middle] * 1e-3 <= now)
            s->next = middle + 1;
        else
            beyond = middle;
    }
    if (s->next == s->count && s->end == LOOP) {   /* the lap ends now, to within rounding */
        s->began += period(s);
        s->next = 0;
    }
}

/* Serve at the schedule's moments up to `now`. */
static void deliver(struct link *l, double now)
{
    struct schedule *s = &l->schedule;
    struct packet *p = first_in_queue(l);
    for (; p && next_moment(s) <= now; take_moment(s)) {
        double moment = fmax(next_moment(s), l->clock);
        for (double room = s->bytes; p && room > 0; p = first_in_queue(l)) {
            p->service += moment - l->clock;
            l->clock = moment;
            double part = fmin(room, p->left);
            room -= part;
            p->left -= part;
            if (p->left > ROUNDING)
                break;
            put_into_pipe(l, p);
        }
    }
    if (s->next == s->count)
        return;
    if (p)
        p->service += now - l->clock;
    else
        pass_over(s, now);
    l->clock = now;
}

/* Advance the model to `now`. */
void advance(struct link *l, double now)
{
    struct schedule *s = &l->schedule;
    if (s->moments)
        deliver(l, now);
    if (s->next == s->count) /* no schedule, or it is over: after STOP the link is down, and what waits leaves */
        serve(l, now);
    l->clock = now;
}

static void grow(struct link *l)
{
    uint32_t size = l->size ? 2 * l->size : 64;
    struct packet *ring = malloc(size * sizeof *ring);
    if (!ring)
        abort(); /* every link is dead, and the parent reports it */
    for (uint32_t i = l->head; i != l->tail; i++)
        ring[i & (size - 1)] = *packet_at(l, i);
    free(l->ring);
    l->ring = ring;
    l->size = size;
}

/* Return whether the next packet is lost. A chain that stays good costs one random draw, a link without loss none. */
static bool is_lost(struct link *l)
{
    struct chain *c = &l->loss;
    double loss = c->is_bad ? c->bad : c->good;
    bool lost = loss > 0 && chance(l) < loss;
    if (c->p > 0 && chance(l) < (c->is_bad ? c->r : c->p))
        c->is_bad = !c->is_bad;
    return lost;
}

void arrive(struct link *l, uint32_t id, uint32_t wire, uint16_t frames, double now)
{
    advance(l, now);
    /* The kernel numbers a packet, then drops it if our receive buffer is full: a gap is the number of such drops. */
    l->count.dropped_queue += id - l->last_id - 1;
    l->last_id = id;
    if (!l->up || is_lost(l)) {
        l->count.dropped_loss += frames;
        give_verdict(l, NFQNL_MSG_VERDICT, id, NF_DROP);
        return;
    }
    if (refuses(l) || l->backlog >= l->limit) {
        l->count.dropped_queue += frames;
        give_verdict(l, NFQNL_MSG_VERDICT, id, NF_DROP);
        return;
    }
    if (l->tail - l->head == l->size)
        grow(l);
    *packet_at(l, l->tail) = (struct packet){
        .id = id, .wire = wire, .frames = frames, .left = wire, .arrived = now, .queued = l->serving != l->tail,
    };
    l->backlog += wire;
    l->tail++;
}

/* The time when the first packet of the queue is served, or an earlier bound. */
static double served(struct link *l)
{
    const struct schedule *s = &l->schedule;
    if (s->next < s->count)
        return next_moment(s);
    if (l->rate <= 0)
        return INFINITY;
    return l->clock + packet_at(l, l->serving)->left / l->rate;
}

/* The time of the link's next release; with jitter, the earliest possible one. */
double due(struct link *l)
{
    double earliest = INFINITY;
    if (l->serving != l->tail) {
        earliest = served(l) + fmax(l->delay - l->jitter, 0);
        if (!l->reorder)
            earliest = fmax(l->last_release, earliest);
    }
    for (uint32_t i = l->head; i != l->serving; i++) {
        const struct packet *p = packet_at(l, i);
        if (p->passed)
            continue;
        earliest = fmin(earliest, p->release);
        if (!l->reorder)
            break;
    }
    return earliest;
}

/* End the stretch; it counts towards the rate if it was long enough. */
static void end_stretch(struct link *l)
{
    if (l->stretch.time >= STEADY) {
        l->count.steady.time += l->stretch.time;
        l->count.steady.bytes += l->stretch.bytes;
        l->count.steady.allowed += l->stretch.allowed;
    }
    l->stretch = (struct stretch){0};
}

/* Count a released packet. The output rate is measured here, on the real clock: over stretches in which each packet had
 * waited behind another, it compares the bytes passed with (real time) × (the rate of service). A packet that shared its
 * moment with its predecessor took no time. A change of the link's delay between the two is no time of service: where it
 * grew, nothing passes meanwhile, and where it fell, packets pass at once that were served one after the other. */
static void count(struct link *l, const struct packet *p, double now)
{
    l->count.packets += p->frames;
    l->count.bytes += p->wire;
    if (p->queued) {
        double passed = fmax(now - l->last_passed - (p->delay - l->last_delay), 0);
        l->count.busy += passed;
        l->stretch.time += passed;
        l->stretch.bytes += p->wire;
        l->stretch.allowed += p->service > 0 ? passed * p->wire / p->service : p->wire;
    } else {
        end_stretch(l);
    }
    l->last_passed = now;
    l->last_delay = p->delay;
}

/* Release the packets that are due, from the head on, with one verdict. Packets that the model dropped have left the
 * kernel's list already, or their verdicts precede this one. */
static void release_in_order(struct link *l, double now)
{
    const struct packet *last = NULL;
    for (; l->head != l->serving; l->head++) {
        const struct packet *p = packet_at(l, l->head);
        if (p->passed)
            continue;
        if (p->release > now + early)
            break;
        last = p;
        count(l, p, now);
    }
    if (last)
        give_verdict(l, NFQNL_MSG_VERDICT_BATCH, last->id, NF_ACCEPT);
}

/* Release the packets that are due, wherever they are in the pipe. This walks the pipe, and the kernel walks its list for
 * each verdict, which only links with reordering pay. Packets that are due in one pass leave in the order of arrival. */
static void release_out_of_order(struct link *l, double now)
{
    for (uint32_t i = l->head; i != l->serving; i++) {
        struct packet *p = packet_at(l, i);
        if (p->passed || p->release > now + early)
            continue;
        give_verdict(l, NFQNL_MSG_VERDICT, p->id, NF_ACCEPT);
        p->passed = true;
        count(l, p, now);
    }
    while (l->head != l->serving && packet_at(l, l->head)->passed)
        l->head++;
}

void release(struct link *l, double now)
{
    advance(l, now);
    if (l->reorder)
        release_out_of_order(l, now);
    else
        release_in_order(l, now);
}
