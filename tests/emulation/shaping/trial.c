/* The core's model of one link on simulated time, for test_discipline.py.
 *
 * It is given a line RATE LIMIT DELAY SEED DISCIPLINE LEAST MOST CHANCE WEIGHT, then one for each packet, MOMENT BYTES. It
 * prints what becomes of each, "pass" or "drop", with its number from 1 on and the moment.
 */
#include <linux/netfilter.h>
#include <stdio.h>
#include <stdlib.h>

#include "core.h"

double early;
static double now;

void give_verdict(struct link *l, uint8_t scope, uint32_t id, uint32_t verdict)
{
    (void)scope;
    bool drops = verdict == NF_DROP;
    printf("%s %u %.9f\n", drops ? "drop" : "pass", id, drops ? l->clock : now);
}

static void release_until(struct link *l, double until)
{
    while ((now = due(l)) <= until)
        release(l, now);
}

int main(void)
{
    struct link l = {.up = true, .mtu = 1500};
    int kind;
    if (scanf("%lf %lf %lf %lu %d %lf %lf %lf %lf", &l.rate, &l.limit, &l.delay, &l.random, &kind, &l.discipline.least,
              &l.discipline.most, &l.discipline.chance, &l.discipline.weight) != 9)
        return 2;
    l.discipline.kind = (enum kind)kind;
    double moment;
    uint32_t wire;
    for (uint32_t id = 1; scanf("%lf %u", &moment, &wire) == 2; id++) {
        release_until(&l, moment);
        arrive(&l, id, wire, 1, moment);
    }
    release_until(&l, 1e9);
    free(l.ring);
    return 0;
}
