/* Queueing disciplines: what drops packets of a queue before its limit does.
 *
 * CoDel (RFC 8289) looks at a packet as its service would begin. The kernel's own, sch_codel, enters the dropping state with
 * the same memory of the one before, 16 intervals. RED (Floyd and Jacobson 1993) looks at a packet as it arrives; it is not
 * gentle, and spreads drops evenly (the paper's method 2), as sch_red does.
 */
#include "core.h"

/* A dropping state that begins within this many intervals of the last drop continues that one's count. */
static const double REMEMBERED = 16;

/* Return whether CoDel may drop the next packet at the model's time, by the time that packets have waited. */
static bool codel_allows(struct link *l)
{
    struct codel *c = &l->codel;
    const struct packet *p = first_in_queue(l);
    bool short_wait = !p || l->clock - p->arrived < l->discipline.least;
    if (short_wait || l->backlog - p->wire <= l->mtu + ETHERNET_HEADER) {
        c->first_above = 0;
        return false;
    }
    if (c->first_above == 0)
        c->first_above = l->clock + l->discipline.most;
    return l->clock >= c->first_above;
}

static double next_drop(const struct link *l, double since)
{
    return since + l->discipline.most / sqrt(l->codel.count);
}

static void codel_choose(struct link *l)
{
    struct codel *c = &l->codel;
    bool allowed = codel_allows(l);
    if (c->dropping) {
        c->dropping = allowed;
        while (c->dropping && l->clock >= c->drop_next) {
            drop_first(l);
            c->count++;
            c->dropping = codel_allows(l);
            if (c->dropping)
                c->drop_next = next_drop(l, c->drop_next);
        }
    } else if (allowed) {
        drop_first(l);
        codel_allows(l);
        c->dropping = true;
        uint32_t more = c->count - c->last_count;
        c->count = more > 1 && l->clock - c->drop_next < REMEMBERED * l->discipline.most ? more : 1;
        c->last_count = c->count;
        c->drop_next = next_drop(l, l->clock);
    }
}

/* Drop the packets that should not be served now; called at the model's time before each service. */
void choose_next(struct link *l)
{
    if (l->discipline.kind == CODEL)
        codel_choose(l);
    if (!first_in_queue(l))
        l->red.idle_since = l->clock;
}

/* Update the mean length of the queue. While the queue is empty, the mean falls as if packets had arrived. */
static void red_average(struct link *l)
{
    struct red *r = &l->red;
    double weight = l->discipline.weight;
    if (first_in_queue(l))
        r->average += weight * (l->backlog - r->average);
    else
        r->average *= pow(1 - weight, (l->clock - r->idle_since) * l->rate / (l->mtu + ETHERNET_HEADER));
}

/* Return whether the discipline drops a packet that arrives at the model's time. */
bool refuses(struct link *l)
{
    const struct discipline *d = &l->discipline;
    struct red *r = &l->red;
    if (d->kind != RED)
        return false;
    red_average(l);
    if (r->average < d->least || r->average >= d->most) {
        r->between = 0;
        return r->average >= d->most;
    }
    /* `between` counts packets since the last drop, or since the mean length came between the two lengths. */
    bool drops = r->between > 0 && r->between * d->chance * (r->average - d->least) / (d->most - d->least) >= r->draw;
    if (drops || r->between == 0)
        r->draw = chance(l);
    r->between = drops ? 1 : r->between + 1;
    return drops;
}
