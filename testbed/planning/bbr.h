/* What a connection under BBR believes that its path carries, by the kernel's rules (net/ipv4/tcp_bbr.c; Cardwell et
 * al., "BBR: Congestion-Based Congestion Control", ACM Queue 14:5, 2016). It never sends faster than its `pace`.
 *
 *     STARTUP   2.89 times the estimate, until three round trips brought less than a quarter more
 *     then      1.25 times the estimate for a round trip, and on while that brings more; one round trip at the
 *               estimate, in which the queue drains; six more at it
 *     estimate  the most of the last ten round trips. What comes back in one was sent half in it and half in the one
 *               before, so STARTUP doubles the estimate each round trip, and probing adds 16 %. Round trips in which
 *               the program had nothing to send count only if they show more; the first after a pause counts not at all
 *     policed   where twice four round trips lost a fifth and brought the same, it takes the path for policed, and keeps
 *               to what they brought for 48 (lt_bw in the kernel)
 *
 * A link that falls below the estimate has its queue full, which holds a round trip of what the link carries: round
 * trips are twice as long then, and what is sent beyond the link's rate is lost. That losses are sent again is not in
 * it: what is above the link's rate is simply not sent.
 */
#ifndef BBR_H
#define BBR_H

#include <stdbool.h>

#define BBR_SAMPLES 10

/* A connection; `bbr.py` has the same names in the same order. Seconds are the simulation's. All are doubles, so that
 * it is a row of an array. */
struct bbr {
    double trip_s;               /* a round trip, queues empty */
    double estimate;             /* bytes a second */
    double samples[BBR_SAMPLES]; /* of round trips, as they were; 0 where one counts not */
    double trips;                /* so many so far */
    double startup;              /* round trips without growth that STARTUP still bears; 0 once it is over */
    double phase;                /* of the cycle of eight: 0 probes, 1 drains */
    double held;                 /* bytes a second while it believes in a policer, */
    double held_trips;           /* for so many round trips more */
    double lossy_trips, lossy_bytes, lossy_s, lossy_rate; /* of this interval with losses; what the one before brought */
    double stopped_s;            /* when it last stopped sending */
    /* Of the round trip that is on: */
    double began_s, ends_s;      /* INFINITY where none is */
    double bytes;                /* sent in it */
    double last;                 /* bytes a second, of the one before */
    double paused;               /* 1 where the program had nothing to send meanwhile */
    double first;                /* 1 for the first after a pause */
    double stretched;            /* 1 once it was found to be twice as long */
};

/* The most that it sends, bytes a second. */
double bbr_pace(const struct bbr *c);
/* It has something to send. */
void bbr_start(struct bbr *c, double now_s);
/* It has nothing more to send. */
void bbr_stop(struct bbr *c, double now_s);
/* Its round trip is over, by `ends_s`; `sends` says whether it sends now. */
void bbr_trip(struct bbr *c, double now_s, bool sends);

#endif
