/* Future states, which this process puts in force at their moments.
 *
 * The model is advanced to the moment before it changes, whenever the process wakes: a packet half served at the old rate
 * keeps the half that was served by then. So a late wake-up delays releases, as it always does, but not the change. The
 * lateness is reported all the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* The longest line of a report. */
enum { CHANGE_LINE = 64 };

/* A change that took effect and was not reported to the parent yet. */
struct done {
    int link;
    double moment, late;
};

static struct done *done;
static size_t done_count, done_room;

/* Double the room of an array. Without memory the process aborts: every link is dead, and the parent reports it. */
static void *grown(void *array, size_t *room, size_t each)
{
    *room = *room ? 2 * *room : 64;
    array = realloc(array, *room * each);
    if (!array)
        abort();
    return array;
}

/* Put a state in force at the model's time. A link that goes down keeps its rate, so that packets already in it drain. */
void enforce(struct link *l, const struct state *s)
{
    l->up = s->rate > 0;
    l->rate = l->up ? s->rate : l->rate;
    l->limit = s->limit, l->delay = s->delay, l->jitter = s->jitter, l->reorder = s->reorder;
    bool is_bad = l->loss.is_bad && s->loss.p > 0;
    l->loss = s->loss;
    l->loss.is_bad = is_bad;
    if (l->discipline.kind != s->discipline.kind) {
        l->codel = (struct codel){0};
        l->red = (struct red){.idle_since = l->clock};
    }
    l->discipline = s->discipline;
    fit_kernel_queue(l);
}

/* Append a future change. */
void expect(struct link *l, const struct change *c)
{
    if (l->change == l->changes_end)
        l->change = l->changes_end = 0;
    if (l->changes_end == l->changes_room && l->change > l->changes_room / 2) {   /* most of them are over */
        l->changes_end -= l->change;
        memmove(l->changes, l->changes + l->change, l->changes_end * sizeof *l->changes);
        l->change = 0;
    }
    if (l->changes_end == l->changes_room)
        l->changes = grown(l->changes, &l->changes_room, sizeof *l->changes);
    l->changes[l->changes_end++] = *c;
}

/* Drop the link's unreported changes: its number may be another link's before the parent asks for them. */
void forget_link(const struct link *l)
{
    size_t kept = 0;
    for (size_t i = 0; i < done_count; i++)
        if (done[i].link != l - links)
            done[kept++] = done[i];
    done_count = kept;
}

/* The moment of the next change; INFINITY if there is none. */
double next_change(const struct link *l)
{
    return l->change < l->changes_end ? l->changes[l->change].moment : INFINITY;
}

/* Put the changes that are due in force, each at its moment. */
void change_due(struct link *l, double now)
{
    for (; next_change(l) <= now; l->change++) {
        const struct change *c = &l->changes[l->change];
        advance(l, fmax(c->moment, l->clock));
        enforce(l, &c->state);
        if (done_count == done_room)
            done = grown(done, &done_room, sizeof *done);
        done[done_count++] = (struct done){(int)(l - links), c->moment, clock_now() - c->moment};
    }
}

/* Write a line for each unreported change, as many as there is room for, and return the number of bytes. Moments are on
 * the monotonic clock. */
size_t report_changes(char *text, size_t room)
{
    double zero = (double)epoch.tv_sec + (double)epoch.tv_nsec * 1e-9;
    size_t used = 0, told = 0;
    for (; told < done_count && room - used > CHANGE_LINE; told++)
        used += (size_t)snprintf(text + used, room - used, "\n%d %.9f %.9f", done[told].link, zero + done[told].moment,
                                 done[told].late);
    done_count -= told;
    if (told)   /* otherwise there may be no array yet */
        memmove(done, done + told, done_count * sizeof *done);
    return used;
}
