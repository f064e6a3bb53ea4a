/* BBR's rules, as bbr.h explains them. */
#include "bbr.h"

#include <math.h>
#include <string.h>

/* The kernel's constants. */
#define STARTUP_GAIN (2885.0 / 1000)
#define PROBE_GAIN 1.25
#define GROWTH 1.25
#define PHASES 8
#define CRUISE 2
#define LOSSY (50.0 / 256) /* lost to delivered */
#define STARTUP_TRIPS 3
#define LOSSY_TRIPS 4
#define ALIKE (1.0 / 8)
#define HELD_TRIPS 48
/* The constants of testbed/sync/transport/startup.py. */
#define SLOW 0.5
#define GROWN 1.4
#define WAIT_S 1.0
/* Rates that differ by less than this part are equal. */
#define SAME 1e-6

double bbr_pace(const struct bbr *c)
{
    if (c->held_trips > 0)
        return c->held;
    if (c->first > 0)
        return c->estimate;
    if (c->startup > 0)
        return STARTUP_GAIN * c->estimate;
    return c->phase == 0 ? PROBE_GAIN * c->estimate : c->estimate;
}

static void begin(struct bbr *c, double now_s)
{
    c->began_s = now_s;
    c->ends_s = now_s + c->trip_s;
    c->bytes = c->paused = c->first = c->stretched = 0;
}

void bbr_start(struct bbr *c, double now_s)
{
    if (c->ends_s < INFINITY) {
        c->paused = c->paused > 0 || now_s > c->stopped_s;
        return;
    }
    begin(c, now_s);
    c->first = 1;
}

void bbr_stop(struct bbr *c, double now_s)
{
    c->stopped_s = now_s;
}

/* Add a sample; the estimate becomes the largest of all samples. */
static void learn(struct bbr *c, double sample)
{
    c->samples[(int)fmod(c->trips, BBR_SAMPLES)] = sample;
    c->estimate = 0;
    for (int i = 0; i < BBR_SAMPLES; i++)
        c->estimate = fmax(c->estimate, c->samples[i]);
}

static void forget_losses(struct bbr *c)
{
    c->lossy_trips = c->lossy_bytes = c->lossy_s = 0;
}

/* Record whether a round trip lost a fifth of the bytes that it brought. */
static void lose(struct bbr *c, bool lossy, double seconds)
{
    if (!lossy) {
        forget_losses(c);
        c->lossy_rate = 0;
        return;
    }
    c->lossy_bytes += c->bytes;
    c->lossy_s += seconds;
    if (++c->lossy_trips < LOSSY_TRIPS)
        return;
    double rate = c->lossy_bytes / c->lossy_s;
    if (c->lossy_rate > 0 && fabs(rate - c->lossy_rate) <= ALIKE * c->lossy_rate) {
        c->held = (rate + c->lossy_rate) / 2;
        c->held_trips = HELD_TRIPS;
        rate = 0;
    }
    forget_losses(c);
    c->lossy_rate = rate;
}

/* Begin again at STARTUP if that is due; `calm`: whether the last round trip had neither losses nor a queue. */
static void restart(struct bbr *c, double now_s, bool calm)
{
    double rate = c->held_trips > 0 ? c->held : c->estimate;
    c->highest = fmax(c->highest, rate);
    if (c->startup > 0) {
        c->lowest = 0;
        return;
    }
    if (rate > SLOW * c->highest) {
        c->lowest = 0;
        c->wait_s = WAIT_S;
        return;
    }
    c->lowest = c->lowest > 0 ? fmin(c->lowest, rate) : rate;
    bool rises = rate >= GROWN * c->lowest;
    if (!calm || !(rises || now_s >= c->due_s))
        return;
    c->wait_s *= rises ? 1 : 2;
    c->due_s = now_s + c->wait_s;
    c->lowest = c->held_trips = c->lossy_rate = 0;
    forget_losses(c);
    memset(c->samples, 0, sizeof c->samples);
    learn(c, rate);
    c->startup = STARTUP_TRIPS;
}

void bbr_trip(struct bbr *c, double now_s, bool sends)
{
    double seconds = (sends || c->paused > 0 ? now_s : c->stopped_s) - c->began_s;
    double sample = seconds > 0 ? c->bytes / seconds : 0;
    double wanted = fmin(bbr_pace(c), c->estimate);
    bool whole = sends && !(c->paused > 0); /* the connection sent all the time */
    if (whole && !(c->stretched > 0) && sample < wanted * (1 - SAME)) {
        c->stretched = 1;
        c->ends_s = now_s + c->trip_s;
        return;
    }
    double before = c->estimate;
    bool counts = whole && !(c->first > 0);
    bool lossy = counts && wanted >= (1 + LOSSY) * sample, queued = c->stretched > 0;
    bool probed = c->phase == 0 && counts;
    c->samples[(int)fmod(c->trips, BBR_SAMPLES)] = 0;
    double back = (sample + c->last) / 2;
    if (!(c->first > 0) && (!(c->paused > 0) || back > c->estimate) && sample > 0)
        learn(c, back);
    c->last = sample;
    c->trips++;
    if (c->held_trips > 0) {
        if (!--c->held_trips)
            c->phase = CRUISE;
    } else if (c->startup > 0) {
        if (c->estimate >= GROWTH * before * (1 - SAME))
            c->startup = STARTUP_TRIPS;
        else if (counts)
            c->startup--;
        if (!(c->startup > 0))
            c->phase = CRUISE;
    } else {
        lose(c, lossy, seconds);
        if (c->phase > 0)
            c->phase = fmod(c->phase + 1, PHASES);
        else if (probed && c->estimate <= before * (1 + SAME))
            c->phase = 1;
    }
    restart(c, now_s, counts && !lossy && !queued);
    if (sends)
        begin(c, now_s);
    else
        c->ends_s = INFINITY;
}
