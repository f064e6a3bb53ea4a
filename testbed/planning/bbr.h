/* A connection's estimate of its path's rate under BBR, by the kernel's rules (net/ipv4/tcp_bbr.c; Cardwell et al., "BBR:
 * Congestion-Based Congestion Control", ACM Queue 14:5, 2016). The connection never sends faster than its `pace`.
 *
 *     STARTUP   the pace is 2.89 times the estimate, until three round trips brought less than a quarter more
 *     then      1.25 times the estimate for a round trip, and longer while that brings more; one round trip at the
 *               estimate, in which the queue drains; six more at the estimate
 *     estimate  the maximum of the last ten round trips. Bytes that come back in one were sent half in it and half in the
 *               one before, so STARTUP doubles the estimate each round trip, and probing adds 16 %. Round trips in which
 *               the program had nothing to send count only if they show more; the first after a pause does not count
 *     policed   if twice four round trips lost a fifth and brought the same rate, the connection takes the path for policed,
 *               and keeps to that rate for 48 round trips (lt_bw in the kernel)
 *     restart   a member lets a connection begin again at STARTUP if it sends at most half as fast as it once did, without
 *               losses or a queue: `StartUp` of testbed/sync/transport/startup.py
 *
 * A link that falls below the estimate has a full queue, which holds a round trip of the link's rate: round trips are then
 * twice as long, and bytes beyond the link's rate are lost. The model leaves retransmissions out: bytes beyond the link's
 * rate are not sent.
 */
#ifndef BBR_H
#define BBR_H

#include <stdbool.h>

#define BBR_SAMPLES 10

/* A connection; `CONNECTION` in `events.py` has the same names in the same order. Seconds count from the simulation's
 * begin. All fields are doubles, so that a connection is a row of an array. */
struct bbr {
    double trip_s;               /* a round trip, queues empty */
    double estimate;             /* bytes a second */
    double samples[BBR_SAMPLES]; /* bytes a second of the last round trips; 0 for one that does not count */
    double trips;                /* round trips so far */
    double startup;              /* round trips without growth until STARTUP ends; 0 after STARTUP */
    double phase;                /* of the cycle of eight round trips: 0 probes, 1 drains */
    double held;                 /* the rate of a policed path, bytes a second */
    double held_trips;           /* round trips for which the connection still keeps to it */
    double lossy_trips, lossy_bytes, lossy_s, lossy_rate; /* the interval with losses so far; the rate of the one before */
    double stopped_s;            /* when the connection last stopped sending */
    double highest;              /* the highest estimate so far */
    double lowest;               /* the lowest one while it is at most half of that; 0 otherwise */
    double due_s, wait_s;        /* when it may begin again although it does not grow; the wait until then */
    /* The current round trip: */
    double began_s, ends_s;      /* INFINITY without one */
    double bytes;                /* sent so far */
    double last;                 /* bytes a second of the round trip before */
    double paused;               /* 1 if the program had nothing to send at times */
    double first;                /* 1 for the first after a pause */
    double stretched;            /* 1 once it was found to be twice as long */
};

/* Return the greatest rate at which the connection sends, bytes a second. */
double bbr_pace(const struct bbr *c);
/* Record that the connection has something to send. */
void bbr_start(struct bbr *c, double now_s);
/* Record that the connection has nothing more to send. */
void bbr_stop(struct bbr *c, double now_s);
/* Record that the round trip ended, by `ends_s`; `sends`: whether the connection sends now. */
void bbr_trip(struct bbr *c, double now_s, bool sends);

#endif
