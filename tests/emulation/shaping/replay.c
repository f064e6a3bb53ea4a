/* A link's future states over a long replay, for test_core.py: each second one comes in ahead, and one is put in force.
 *
 * It prints the moments that are left, and the number of states that the link's array has room for.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core.h"

enum { SECONDS = 100000, AHEAD = 50 };

struct link links[LINKS_AT_MOST];
struct timespec epoch;

double clock_now(void)
{
    return 0;
}

void advance(struct link *l, double now)
{
    l->clock = now;
}

void fit_kernel_queue(struct link *l)
{
    (void)l;
}

int main(void)
{
    static char text[4096];
    struct link *l = &links[0];
    for (int i = 0; i < SECONDS; i++) {
        expect(l, &(struct change){.moment = i + AHEAD, .state.rate = 1});
        change_due(l, i);
        report_changes(text, sizeof text);
    }
    printf("%zu", l->changes_room);
    for (; next_change(l) < INFINITY; l->change++)
        printf(" %.0f", next_change(l));
    free(l->changes);
    return 0;
}
