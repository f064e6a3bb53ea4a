/* The shaping core: one process that holds the packets of every link of a network until they are due.
 *
 *     router's namespace                                    this process
 *     forward ─► mangle ─► -j NFQUEUE n ──(headers only)──► arrive() ─► [ queue | service ] ─► [ delay line ]
 *                             │  the packet stays here                       advance()             release()
 *                             ▼                                                                      │
 *     veth   ◄── verdict: accept all up to id ◄──────────────────────────────────────────────────────┘
 *
 * The model of a link is a server with a queue before it and a pipe behind it:
 *
 *     - A packet that finds `limit` bytes or more in the queue is dropped (tail drop). So a super-packet of 64 KiB
 *       may exceed the limit by its own length, and a queue shorter than one super-packet still passes traffic.
 *     - The server sends `rate` bytes a second, one packet after the other, and never idles while one waits.
 *     - Or it serves a schedule: at each of its moments up to `bytes` of what waits, several small packets as well as
 *       part of a large one, which continues at the next. A moment without waiting packets is lost (as in Mahimahi).
 *     - A discipline may drop packets before: RED as they arrive, CoDel as their service would begin (discipline.c).
 *     - A packet leaves the pipe `delay` (± `jitter`, uniform) after its service, and never before its predecessor
 *       unless the link reorders.
 *     - Loss is drawn on arrival, as netem does: a lost packet takes no service. It is a Gilbert-Elliott chain;
 *       random loss is a chain that stays good. A link that is down loses all; packets already in it drain.
 *
 * Worked numbers: 10 Mbit/s is 1.25e6 bytes a second, so a full frame of 1,514 bytes takes 1.2112 ms. Ten of them
 * arriving together at t = 0 on a link with 40 ms leave at 41.2, 42.4, … 52.1 ms. If at t = 6.056 ms, when five
 * have been served, the rate falls to 5 Mbit/s, the sixth takes 2.4224 ms and leaves at 48.5 ms: the model is
 * always advanced to now before anything changes, so a packet half sent keeps the half that was sent, and
 * correctness never depends on when this process happened to wake.
 *
 * Bytes are counted as tc counts them, frames with their Ethernet header but no FCS: 14 + IP length. A super-packet
 * (segmentation offload) stands for ⌈payload / (MTU − headers)⌉ frames and pays the headers of each: 65,212 bytes of
 * IP with 52 bytes of TCP/IP headers on a 1,500-byte MTU is 45 frames, 65,212 + 44 × 52 + 45 × 14 = 68,130 bytes.
 *
 * Why verdicts are in order: all packets released in one pass get one batch message, which covers all packets up to the
 * last of them.
 *
 * Why a dropped packet gets a verdict of its own at once: if it waited for its turn, a flood of 1 Gbit/s into 64 kbit/s
 * would leave 83,000 packets a second in the kernel, of 2 KB and more each; and a kernel that finds packets by a hash
 * (6.18.44 does) keeps 65,536 of a queue, then drops packets that the model would let through. An older kernel looks a
 * packet up from the head of its list, so this walks over the packets that the link holds, but no further, since no
 * dropped packet is among them.
 *
 * Why links are dead when this process ends: the rules have no --queue-bypass, and the kernel drops packets sent to a
 * queue that nobody listens to.
 *
 * Commands arrive on standard input, a SOCK_SEQPACKET socket. One message is one batch, executed at one instant: a line
 * with the number of the message, then one for each command, until one fails:
 *
 *     attach LINK SEED STATE INTERFACE NAMESPACE   queue number LINK of that namespace
 *     set LINK STATE                               RATE LIMIT DELAY JITTER REORDER GOOD BAD P R: bytes/s, bytes, s, s,
 *                                                  0 or 1, and four probabilities: two of loss, two of a change. Then
 *                                                  DISCIPLINE LEAST MOST CHANCE WEIGHT: 0 (tail drop, whose values do not
 *                                                  count), 1 (CoDel: target and interval, in s) or 2 (RED: two mean
 *                                                  lengths in bytes, the probability at MOST, the weight of a packet)
 *     later LINK MOMENT STATE                      set the state at that moment of the monotonic clock, in s; a link's
 *                                                  moments must be in order
 *     forget LINK                                  drop the link's future states
 *     applied                                      report the future states that took effect since the last call
 *     follow LINK BEGAN BYTES END                  serve a schedule: its time 0 on the monotonic clock, in s; the bytes of
 *                                                  each moment; loop, hold (the rate) or stop. Its moments, as 64-bit ms,
 *                                                  are a file whose descriptor comes with the message
 *     unfollow LINK                                serve the rate again
 *     detach LINK                                  stop serving the link, if it is attached
 *     counters LINK                                report the counters of this link and the following ones
 *
 * The answer is one message: NUMBER "ok", or NUMBER "error" REASON, with the number of the message it answers. `counters`
 * adds a line for each link, `applied` one for each change: LINK MOMENT LATE, in s. Lines without room are sent when the
 * command is repeated. A rate of 0 means down.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core.h"

/* A pass over all waiting and due packets costs some 10 µs, so there are at most 4,000 a second, of which 64 may follow
 * each other at once: a few packets get no added delay, and under load each pass serves a grain's worth of packets.
 * Arrivals are then seen half a grain late on average, so releases go half a grain early. */
static const double GRAIN = 250e-6;
static const double PASSES_AT_ONCE = 64;

/* Without load, waking takes a while: 20 µs on a desktop, 150 to 250 µs in a virtual machine whose processors sleep. It
 * is measured at every timer: half of the wake-ups take longer than `wake`. A packet's arrival is seen that late, and its
 * release would be as late again, so the timer is set ahead by twice that time, and by a grain at most. Over a path of
 * six such links a ping took 0.4 ms more than configured, and 1.7 ms more with `wake` fixed at 20 µs. */
static const double WAKE_STEP = 2e-6;
static double wake = 20e-6;

static void learn_to_wake(double late)
{
    wake = fmin(fmax(wake + (late > wake ? WAKE_STEP : -WAKE_STEP), 0), GRAIN);
}

/* The exit code on a kernel without epoll_pwait2, in which the loop would wait for nothing and never read a command. */
static const int LACKS_EPOLL_PWAIT2 = 3;

/* The interval in seconds for checking the parent if nothing else happens. The control socket's end of file comes sooner,
 * unless a process the parent forked still holds a copy. (PR_SET_PDEATHSIG would not do: it fires when the thread
 * that started us ends, not the process.) */
static const double PARENT_CHECK = 0.5;

struct link links[LINKS_AT_MOST];
struct namespace namespaces[NAMESPACES_AT_MOST];
int link_count, namespace_count;
int poller, home;
struct timespec epoch;
double early;

/* Seconds since the start; small numbers keep a double exact to well below a nanosecond. */
double clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)(t.tv_sec - epoch.tv_sec) + (double)(t.tv_nsec - epoch.tv_nsec) * 1e-9;
}

static struct timespec duration(double seconds)
{
    double whole = floor(fmax(seconds, 0));
    return (struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)((fmax(seconds, 0) - whole) * 1e9)};
}

/* Get real-time priority, locked memory and exact timers, as far as the system permits. */
static void take_priority(void)
{
    prctl(PR_SET_TIMERSLACK, 1);
    mlockall(MCL_CURRENT | MCL_FUTURE);
    if (sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1}) < 0)
        setpriority(PRIO_PROCESS, 0, -20);
}

int main(void)
{
    clock_gettime(CLOCK_MONOTONIC, &epoch);
    home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event control = {.events = EPOLLIN, .data.ptr = NULL};
    if (home < 0 || poller < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &control) < 0) {
        perror("testbed-shaper: standard input must be a SOCK_SEQPACKET socket");
        return 2;
    }
    if (epoll_pwait2(poller, &control, 1, &(struct timespec){0}, NULL) < 0 && errno == ENOSYS)
        return LACKS_EPOLL_PWAIT2;
    take_priority();
    pid_t parent = getppid();
    double passes = PASSES_AT_ONCE, counted = 0; /* passes we may make, and since when that is so */
    while (getppid() == parent) {
        double next = INFINITY, now = clock_now();
        for (struct link *l = links; l < links + link_count; l++)
            if (l->namespace)
                next = fmin(next, fmin(due(l), next_change(l) + early));
        double until = fmin(next - early, now + PARENT_CHECK);
        bool waits = until > now;
        struct timespec wait = duration(until - now);
        struct epoll_event events[64];
        int ready = epoll_pwait2(poller, events, 64, &wait, NULL);
        now = clock_now();
        if (ready == 0 && waits)
            learn_to_wake(now - until);
        passes = fmin(passes + (now - counted) / GRAIN, PASSES_AT_ONCE) - 1;
        counted = now;
        early = passes < 0 ? GRAIN / 2 : fmin(2 * wake, GRAIN);
        if (passes < 0) {
            wait = duration(-passes * GRAIN);
            clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
            ready = epoll_wait(poller, events, 64, 0);
        }
        now = clock_now();
        for (struct link *l = links; l < links + link_count; l++)
            if (l->namespace)
                change_due(l, now);
        for (int i = 0; i < ready; i++) {
            struct namespace *n = events[i].data.ptr;
            if (n && n->socket)
                read_packets(n, 0);
            else if (!n && !serve_command())
                return 0;
        }
        now = clock_now();
        for (struct link *l = links; l < links + link_count; l++)
            if (l->namespace && due(l) <= now + early)
                release(l, now);
        for (struct namespace *n = namespaces; n < namespaces + namespace_count; n++)
            if (n->socket)
                flush_verdicts(n);
    }
    return 0;
}
