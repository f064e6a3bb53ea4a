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
 *       part of a large one, which goes on at the next. A moment at which nothing waits is lost (as in Mahimahi).
 *     - A packet leaves the pipe `delay` (± `jitter`, uniform) after its service, and never before its predecessor
 *       unless the link reorders.
 *     - Loss is drawn on arrival, as netem does: a lost packet takes no service. It is a Gilbert-Elliott chain, of
 *       which random loss is the one that stays good. A link that is down loses all; what it already holds drains.
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
 * Why verdicts are in order: the kernel keeps a queue's packets in a list and looks one up from its head, so a
 * verdict on the first is quick and on the last is a walk. Dropped packets therefore stay in line, taking neither
 * room nor service, and are disposed of when their turn comes; runs of equal verdicts go as one batch message.
 *
 * Why a dead link when this process ends: the rules do not carry --queue-bypass, and the kernel drops what is sent
 * to a queue that nobody listens to.
 *
 * Commands arrive on standard input, a SOCK_SEQPACKET socket; one message is one batch, executed at one instant:
 *
 *     attach LINK SEED STATE INTERFACE NAMESPACE   queue number LINK of that namespace
 *     set LINK STATE                               RATE LIMIT DELAY JITTER REORDER GOOD BAD P R: bytes/s, bytes, s, s,
 *                                                  0 or 1, and four probabilities: two of loss, two of a change
 *     follow LINK BEGAN BYTES END FILE             a schedule: where 0 is on the monotonic clock, in s; what each moment
 *                                                  is for; loop, hold (the rate) or stop; moments as 64-bit ms
 *     unfollow LINK                                the rate again
 *     detach LINK
 *     counters
 *
 * The answer is one message: "ok", with one line a link for `counters`, or "error REASON". A rate of 0 means down.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <math.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    LINKS_AT_MOST = 4096,    /* also the queue numbers in use */
    NAMESPACES_AT_MOST = 1024,
    ETHERNET_HEADER = 14,
    COPY_BYTES = 96,         /* of each packet: the longest IPv4 header (60) and a TCP header's fixed part (20) */
    MESSAGE_BYTES = 1024,    /* one packet's message: COPY_BYTES and about 150 of attributes */
    MESSAGES_A_READ = 64,
    READS_A_PASS = 16,       /* so that a flood at one router cannot starve the others' releases */
    VERDICT_BYTES = 8192,
    RECEIVE_BUFFER = 64 << 20,   /* a message waiting there weighs about 1 KB: 64,000 packets not yet read */
    KERNEL_QUEUE = 1 << 20,      /* packets the kernel may hold for us; the model's limit binds long before */
    COMMAND_BYTES = 1 << 18,
};

/* A pass over all that is waiting and due costs some 10 µs, so there are at most 4,000 a second, of which 64 may
 * follow each other at once: a few packets meet no added delay, and under load each pass serves a grain's worth of
 * packets. Arrivals are then seen half a grain late on average, so releases go half a grain early. */
static const double GRAIN = 250e-6;
static const double PASSES_AT_ONCE = 64;

/* Without load, what waking and passing a packet on takes: set the timer this much ahead. */
static const double WAKE_TIME = 20e-6;

/* Releases are up to a grain early or late, so a stretch of this length tells the rate to within 0.5 %. Bursts of a
 * chunk or two, of 10 ms each, would show errors of 2.5 % that are only those of their ends. */
static const double STEADY = 0.05;

/* Where a frame needs several moments whose bytes are no whole number, sums are off by this little. */
static const double ROUNDING = 1e-6;

/* How often the parent is looked for when nothing else happens. The control socket's end of file says it sooner,
 * unless a process the parent forked still holds a copy. (PR_SET_PDEATHSIG would not do: it fires when the thread
 * that started us ends, not the process.) */
static const double PARENT_CHECK = 0.5;

enum end { LOOP, HOLD, STOP };

/* Moments at which a link may send. */
struct schedule {
    const uint64_t *moments;   /* in ms, rising; the last is also the period of a loop. NULL: there is no schedule */
    size_t count, next;
    double began;              /* where 0 ms of this lap is on our clock */
    double bytes;              /* for each moment */
    enum end end;
};

/* Gilbert-Elliott: in each of two states packets are lost with another probability. */
struct chain {
    double good, bad;          /* loss */
    double p, r;               /* after each packet: from good to bad, and back */
    bool is_bad;
};

struct packet {
    uint32_t id;       /* the kernel's number, increasing within a queue */
    uint32_t wire;     /* bytes of its frames */
    uint16_t frames;   /* more than 1 for a super-packet */
    bool dropped;      /* waits in line for its verdict only */
    bool passed;       /* had its verdict before its turn, on a link that reorders */
    bool queued;       /* came while another was in the queue: its service follows its predecessor's at once */
    double left;       /* bytes not yet served */
    double service;    /* seconds its service took */
    double release;    /* when it is due at the far end; known once served */
};

/* Time in which packets left one right behind another: what passed, and what the rate would have let pass. */
struct stretch {
    double time, bytes, allowed;
};

struct counters {
    uint64_t packets, bytes, dropped_queue, dropped_loss;
    double busy;             /* seconds of all stretches */
    struct stretch steady;   /* the sum of those long enough to tell a rate */
};

struct link {
    struct namespace *namespace;   /* NULL: not attached */
    double rate, delay, jitter, limit;
    bool up, reorder;
    struct chain loss;
    struct schedule schedule;
    uint32_t mtu;
    uint64_t random;
    struct packet *ring;           /* [head, serving) is in the pipe, [serving, tail) is in the queue */
    uint32_t size, head, serving, tail;
    double clock;                  /* the model stands at this time */
    double backlog;                /* bytes of [serving, tail) */
    double last_release;           /* of the model */
    double last_passed;            /* when the last packet really was let through */
    uint32_t last_id;
    struct stretch stretch;        /* the one that goes on */
    struct counters count;
};

struct namespace {
    dev_t device;
    ino_t inode;
    int socket;                    /* 0: unused */
    int links;
    uint32_t sequence;
    size_t verdict_bytes;
    _Alignas(NLMSG_ALIGNTO) char verdicts[VERDICT_BYTES];
};

static struct link links[LINKS_AT_MOST];
static struct namespace namespaces[NAMESPACES_AT_MOST];
static int link_count, namespace_count;   /* one more than the highest index used */
static int poller, home;           /* epoll instance; our own network namespace */
static struct timespec epoch;
static double early;               /* by how much a packet may go before it is due; see GRAIN and WAKE_TIME */

/* ── time and chance ─────────────────────────────────────────────────────────────────────────────────────── */

/* Seconds since the start: small numbers keep a double exact to well below a nanosecond. */
static double clock_now(void)
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

/* Uniform in [0, 1): splitmix64, one state a link, so links do not disturb each other's sequence. */
static double chance(struct link *l)
{
    uint64_t z = l->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* ── the model ───────────────────────────────────────────────────────────────────────────────────────────── */

static struct packet *packet_at(struct link *l, uint32_t position)
{
    return &l->ring[position & (l->size - 1)];
}

/* The packet to be served, or NULL. Positions wrap at 2^32, the ring's size is a power of two. */
static struct packet *first_in_queue(struct link *l)
{
    for (; l->serving != l->tail; l->serving++) {
        struct packet *p = packet_at(l, l->serving);
        if (!p->dropped)
            return p;
        p->release = l->last_release;
    }
    return NULL;
}

/* The first in the queue has been served, at the time where the model stands. */
static void put_into_pipe(struct link *l, struct packet *p)
{
    double jitter = l->jitter > 0 ? l->jitter * (2 * chance(l) - 1) : 0;
    p->release = l->clock + fmax(l->delay + jitter, 0);
    if (!l->reorder)
        p->release = fmax(l->last_release, p->release);
    l->last_release = fmax(l->last_release, p->release);
    l->backlog -= p->wire;
    l->serving++;
}

/* Serve at the link's rate what can have been served by `now`. */
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

/* Pass over the moments up to `now`. A link may have been idle for long, so they are not counted off. */
static void pass_over(struct schedule *s, double now)
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

/* Bring the model to `now`. */
static void advance(struct link *l, double now)
{
    struct schedule *s = &l->schedule;
    if (s->moments)
        deliver(l, now);
    if (!s->moments || (s->next == s->count && s->end == HOLD))
        serve(l, now);
    l->clock = now;
}

static void grow(struct link *l)
{
    uint32_t size = l->size ? 2 * l->size : 64;
    struct packet *ring = malloc(size * sizeof *ring);
    if (!ring)
        abort(); /* every link goes dead, and the parent says so */
    for (uint32_t i = l->head; i != l->tail; i++)
        ring[i & (size - 1)] = *packet_at(l, i);
    free(l->ring);
    l->ring = ring;
    l->size = size;
}

/* Whether the next packet is lost. One whose chain never turns bad costs one draw, one without loss none. */
static bool is_lost(struct link *l)
{
    struct chain *c = &l->loss;
    double loss = c->is_bad ? c->bad : c->good;
    bool lost = loss > 0 && chance(l) < loss;
    if (c->p > 0 && chance(l) < (c->is_bad ? c->r : c->p))
        c->is_bad = !c->is_bad;
    return lost;
}

static void arrive(struct link *l, uint32_t id, uint32_t wire, uint16_t frames, double now)
{
    advance(l, now);
    /* The kernel numbers a packet, then drops it if our receive buffer is full: a gap is such drops. */
    l->count.dropped_queue += id - l->last_id - 1;
    l->last_id = id;
    if (l->tail - l->head == l->size)
        grow(l);
    struct packet *p = packet_at(l, l->tail);
    *p = (struct packet){.id = id, .wire = wire, .frames = frames, .left = wire, .queued = l->serving != l->tail};
    if (!l->up || is_lost(l)) {
        p->dropped = true;
        l->count.dropped_loss += frames;
    } else if (l->backlog >= l->limit) {
        p->dropped = true;
        l->count.dropped_queue += frames;
    } else {
        l->backlog += wire;
    }
    l->tail++;
}

/* When the first in the queue is served, or a moment that cannot be later. */
static double served(struct link *l)
{
    const struct schedule *s = &l->schedule;
    if (s->moments && s->next < s->count)
        return next_moment(s);
    if ((s->moments && s->end == STOP) || l->rate <= 0)
        return INFINITY;
    return l->clock + packet_at(l, l->serving)->left / l->rate;
}

/* When the link next has something to let through; with jitter, the earliest it can be. */
static double due(struct link *l)
{
    double earliest = INFINITY;
    if (l->serving != l->tail) {
        earliest = served(l) + fmax(l->delay - l->jitter, 0);
        if (!l->reorder)
            earliest = fmax(l->last_release, earliest);
    }
    for (uint32_t i = l->head; i != l->serving; i++) {
        const struct packet *p = packet_at(l, i);
        if (!p->passed)
            earliest = fmin(earliest, p->release);
        if (!l->reorder)
            break;
    }
    return earliest;
}

/* ── netlink ─────────────────────────────────────────────────────────────────────────────────────────────── */

static void flush_verdicts(struct namespace *n)
{
    if (n->verdict_bytes && send(n->socket, n->verdicts, n->verdict_bytes, 0) < 0)
        fprintf(stderr, "testbed-shaper: verdicts refused: %s\n", strerror(errno));
    n->verdict_bytes = 0;
}

/* One verdict: NFQNL_MSG_VERDICT on the packet `id` alone, NFQNL_MSG_VERDICT_BATCH on every packet up to it. */
static void give_verdict(struct link *l, uint8_t scope, uint32_t id, uint32_t verdict)
{
    struct message {
        struct nlmsghdr netlink;
        struct nfgenmsg queue;
        struct nlattr attribute;
        struct nfqnl_msg_verdict_hdr verdict;
    } message = {
        .netlink = {.nlmsg_len = sizeof message, .nlmsg_flags = NLM_F_REQUEST,
                    .nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | scope},
        .queue = {.nfgen_family = AF_UNSPEC, .version = NFNETLINK_V0, .res_id = htons((uint16_t)(l - links))},
        .attribute = {.nla_len = NLA_HDRLEN + sizeof message.verdict, .nla_type = NFQA_VERDICT_HDR},
        .verdict = {.verdict = htonl(verdict), .id = htonl(id)},
    };
    struct namespace *n = l->namespace;
    if (n->verdict_bytes + sizeof message > sizeof n->verdicts)
        flush_verdicts(n);
    memcpy(n->verdicts + n->verdict_bytes, &message, sizeof message);
    n->verdict_bytes += sizeof message;
}

/* The stretch is over: it counts towards the rate if it was long enough. */
static void end_stretch(struct link *l)
{
    if (l->stretch.time >= STEADY) {
        l->count.steady.time += l->stretch.time;
        l->count.steady.bytes += l->stretch.bytes;
        l->count.steady.allowed += l->stretch.allowed;
    }
    l->stretch = (struct stretch){0};
}

static uint32_t verdict_on(const struct packet *p)
{
    return p->dropped ? NF_DROP : NF_ACCEPT;
}

/* A packet passes. The rate that comes out is measured here, on the real clock: over stretches in which each packet had
 * waited behind another, bytes passed against (time that really passed) × (the rate it was served at). One that shared
 * its moment with its predecessor took no time. */
static void count(struct link *l, const struct packet *p, double now)
{
    l->count.packets += p->frames;
    l->count.bytes += p->wire;
    if (p->queued) {
        double passed = now - l->last_passed;
        l->count.busy += passed;
        l->stretch.time += passed;
        l->stretch.bytes += p->wire;
        l->stretch.allowed += p->service > 0 ? passed * p->wire / p->service : p->wire;
    } else {
        end_stretch(l);
    }
    l->last_passed = now;
}

/* Let go of what is due, from the head on. */
static void release_in_order(struct link *l, double now)
{
    const struct packet *last = NULL;
    for (; l->head != l->serving; l->head++) {
        const struct packet *p = packet_at(l, l->head);
        if (!p->passed && p->release > now + early)
            break;
        if (p->passed)
            continue;
        if (last && verdict_on(last) != verdict_on(p))
            give_verdict(l, NFQNL_MSG_VERDICT_BATCH, last->id, verdict_on(last));
        last = p;
        if (!p->dropped)
            count(l, p, now);
    }
    if (last)
        give_verdict(l, NFQNL_MSG_VERDICT_BATCH, last->id, verdict_on(last));
}

/* Let go of what is due, wherever in the pipe it is. This walks the pipe, and the kernel walks its list for each verdict:
 * what reordering costs, and only where it is asked for. What is due in one pass leaves in the order in which it came. */
static void release_out_of_order(struct link *l, double now)
{
    for (uint32_t i = l->head; i != l->serving; i++) {
        struct packet *p = packet_at(l, i);
        if (p->passed || p->release > now + early)
            continue;
        give_verdict(l, NFQNL_MSG_VERDICT, p->id, verdict_on(p));
        p->passed = true;
        if (!p->dropped)
            count(l, p, now);
    }
    while (l->head != l->serving && packet_at(l, l->head)->passed)
        l->head++;
}

static void release(struct link *l, double now)
{
    advance(l, now);
    if (l->reorder)
        release_out_of_order(l, now);
    else
        release_in_order(l, now);
}

struct attributes {
    const void *data[NFQA_MAX + 1];
    uint32_t length[NFQA_MAX + 1];
};

static void parse(const struct nlmsghdr *message, struct attributes *found)
{
    memset(found, 0, sizeof *found);
    const char *end = (const char *)message + message->nlmsg_len;
    const char *at = (const char *)NLMSG_DATA(message) + NLMSG_ALIGN(sizeof(struct nfgenmsg));
    while (at + NLA_HDRLEN <= end) {
        const struct nlattr *attribute = (const void *)at;
        int type = attribute->nla_type & NLA_TYPE_MASK;
        if (attribute->nla_len < NLA_HDRLEN || at + attribute->nla_len > end)
            return;
        if (type <= NFQA_MAX) {
            found->data[type] = at + NLA_HDRLEN;
            found->length[type] = attribute->nla_len - NLA_HDRLEN;
        }
        at += NLA_ALIGN(attribute->nla_len);
    }
}

static uint32_t number(const struct attributes *a, int type, uint32_t otherwise)
{
    uint32_t value;
    if (!a->data[type])
        return otherwise;
    memcpy(&value, a->data[type], sizeof value);
    return ntohl(value);
}

/* The length of the IP and transport headers that every frame of a super-packet repeats. */
static uint32_t header_length(const uint8_t *ip, uint32_t copied)
{
    uint32_t network = copied ? (ip[0] & 0x0f) * 4u : 20;
    if (copied > 9 && ip[9] == IPPROTO_UDP)
        return network + 8;
    return network + (copied > network + 12 ? (ip[network + 12] >> 4) * 4u : 20);
}

static void read_packet(const struct nlmsghdr *message, double now)
{
    struct attributes a;
    parse(message, &a);
    const struct nfgenmsg *queue = NLMSG_DATA(message);
    const struct nfqnl_msg_packet_hdr *header = a.data[NFQA_PACKET_HDR];
    uint16_t index = ntohs(queue->res_id);
    if (!header || index >= LINKS_AT_MOST || !links[index].namespace)
        return;
    struct link *l = &links[index];
    uint32_t length = number(&a, NFQA_CAP_LEN, a.length[NFQA_PAYLOAD]);
    uint32_t frames = 1, headers = 0;
    if (number(&a, NFQA_SKB_INFO, 0) & NFQA_SKB_GSO) {
        headers = header_length(a.data[NFQA_PAYLOAD], a.length[NFQA_PAYLOAD]);
        if (length > l->mtu && l->mtu > headers)
            frames = (length - headers + (l->mtu - headers) - 1) / (l->mtu - headers);
    }
    uint32_t wire = length + (frames - 1) * headers + frames * ETHERNET_HEADER;
    arrive(l, ntohl(header->packet_id), wire, (uint16_t)frames, now);
}

enum { NO_ANSWER = -1 };

/* Read packets that wait at a namespace. The kernel's answer to request `sequence`, if it is among them, is
 * returned: 0 or an errno. Answers to verdicts (sequence 0) are errors only and of no interest: the kernel itself
 * drops the packets of an interface that goes away, and then does not know them any more. */
static int read_packets(struct namespace *n, uint32_t sequence)
{
    static _Alignas(NLMSG_ALIGNTO) char buffers[MESSAGES_A_READ][MESSAGE_BYTES];
    static struct iovec vectors[MESSAGES_A_READ];
    static struct mmsghdr messages[MESSAGES_A_READ];
    for (int i = 0; i < MESSAGES_A_READ; i++) {
        vectors[i] = (struct iovec){buffers[i], MESSAGE_BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    int result = NO_ANSWER, got = MESSAGES_A_READ;
    for (int reads = 0; reads < READS_A_PASS && got == MESSAGES_A_READ; reads++) {
        got = recvmmsg(n->socket, messages, MESSAGES_A_READ, MSG_DONTWAIT, NULL);
        double now = clock_now();
        for (int i = 0; i < got; i++) {
            int left = (int)messages[i].msg_len;
            for (struct nlmsghdr *m = (void *)buffers[i]; NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
                if (m->nlmsg_type == (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET)) {
                    read_packet(m, now);
                } else if (m->nlmsg_type == NLMSG_ERROR && sequence && m->nlmsg_seq == sequence) {
                    result = -((struct nlmsgerr *)NLMSG_DATA(m))->error;
                }
            }
        }
    }
    return result;
}

static char *put(char *at, uint16_t type, const void *data, uint16_t length)
{
    struct nlattr attribute = {.nla_len = NLA_HDRLEN + length, .nla_type = type};
    memcpy(at, &attribute, sizeof attribute);
    memcpy(at + NLA_HDRLEN, data, length);
    return at + NLA_ALIGN(attribute.nla_len);
}

/* Bind or unbind a link's queue, and wait for the kernel's answer. False: errno says why. */
static bool configure_queue(struct link *l, uint8_t command)
{
    struct namespace *n = l->namespace;
    _Alignas(NLMSG_ALIGNTO) char buffer[256] = {0};
    struct nlmsghdr *message = (void *)buffer;
    struct nfgenmsg *queue = NLMSG_DATA(message);
    *queue = (struct nfgenmsg){.nfgen_family = AF_UNSPEC, .version = NFNETLINK_V0,
                               .res_id = htons((uint16_t)(l - links))};
    char *at = (char *)queue + NLMSG_ALIGN(sizeof *queue);
    at = put(at, NFQA_CFG_CMD, &(struct nfqnl_msg_config_cmd){.command = command}, sizeof(struct nfqnl_msg_config_cmd));
    if (command == NFQNL_CFG_CMD_BIND) {
        struct nfqnl_msg_config_params params = {htonl(COPY_BYTES), NFQNL_COPY_PACKET};
        at = put(at, NFQA_CFG_PARAMS, &params, sizeof params);
        at = put(at, NFQA_CFG_QUEUE_MAXLEN, &(uint32_t){htonl(KERNEL_QUEUE)}, 4);
        at = put(at, NFQA_CFG_FLAGS, &(uint32_t){htonl(NFQA_CFG_F_GSO)}, 4);
        at = put(at, NFQA_CFG_MASK, &(uint32_t){htonl(NFQA_CFG_F_GSO)}, 4);
    }
    *message = (struct nlmsghdr){.nlmsg_len = (uint32_t)(at - buffer), .nlmsg_seq = ++n->sequence,
                                 .nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_CONFIG,
                                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK};
    if (send(n->socket, buffer, message->nlmsg_len, 0) < 0)
        return false;
    int result;
    while ((result = read_packets(n, n->sequence)) == NO_ANSWER)
        if (poll(&(struct pollfd){.fd = n->socket, .events = POLLIN}, 1, 1000) <= 0)
            return errno = ETIMEDOUT, false;
    return (errno = result) == 0;
}

/* ── commands ────────────────────────────────────────────────────────────────────────────────────────────── */

static char answer[COMMAND_BYTES];

static bool fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t used = (size_t)snprintf(answer, sizeof answer, "error ");
    vsnprintf(answer + used, sizeof answer - used, format, arguments);
    va_end(arguments);
    return false;
}

/* While inside the namespace: what frames the port sends, and that it sends no IPv6, which no rule would catch. */
static bool prepare_interface(struct link *l, const char *interface)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool known = any >= 0 && ioctl(any, SIOCGIFMTU, &request) == 0;
    int reason = errno;
    close(any);
    if (!known)
        return fail("interface %s: %s", interface, strerror(reason));
    l->mtu = (uint32_t)request.ifr_mtu;

    char path[128];
    snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/disable_ipv6", interface);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT ? true : fail("cannot turn IPv6 off on %s: %s", interface, strerror(errno));
    bool written = write(file, "1", 1) == 1;
    close(file);
    return written ? true : fail("cannot turn IPv6 off on %s: %s", interface, strerror(errno));
}

static bool open_socket(struct namespace *n)
{
    n->socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_NETFILTER);
    if (n->socket < 0)
        return n->socket = 0, fail("netlink socket: %s", strerror(errno));
    int size = RECEIVE_BUFFER, on = 1;
    if (setsockopt(n->socket, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) < 0)
        setsockopt(n->socket, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(n->socket, SOL_NETLINK, NETLINK_NO_ENOBUFS, &on, sizeof on);
    setsockopt(n->socket, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = n};
    epoll_ctl(poller, EPOLL_CTL_ADD, n->socket, &event);
    return true;
}

/* Enter the namespace, find or open its socket, look at the interface, and come back. */
static bool join_namespace(struct link *l, const char *interface, const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat identity;
    if (file < 0 || fstat(file, &identity) < 0)
        return fail("namespace %s: %s", path, strerror(errno));
    struct namespace *found = NULL, *unused = NULL;
    for (struct namespace *n = namespaces; n < namespaces + NAMESPACES_AT_MOST && !found; n++) {
        if (n->socket && n->device == identity.st_dev && n->inode == identity.st_ino)
            found = n;
        else if (!n->socket && !unused)
            unused = n;
    }
    struct namespace *n = found ? found : unused;
    bool entered = n && setns(file, CLONE_NEWNET) == 0;
    close(file);
    if (!entered)
        return n ? fail("entering namespace %s: %s", path, strerror(errno)) : fail("more than %d namespaces", NAMESPACES_AT_MOST);
    bool ready = prepare_interface(l, interface) && (found || open_socket(n));
    if (setns(home, CLONE_NEWNET) < 0)
        abort();
    if (!ready)
        return false;
    n->device = identity.st_dev;
    n->inode = identity.st_ino;
    n->links++;
    l->namespace = n;
    if (n - namespaces >= namespace_count)
        namespace_count = (int)(n - namespaces) + 1;
    return true;
}

/* The last link of a namespace closes its socket, which would otherwise keep the namespace alive. */
static void leave_namespace(struct link *l)
{
    struct namespace *n = l->namespace;
    l->namespace = NULL;
    if (--n->links == 0) {
        close(n->socket);
        *n = (struct namespace){0};
    }
}

/* Read a state into the link; the text after it, or NULL. What is down keeps its rate, so that what it holds drains. */
static const char *read_state(struct link *l, const char *text)
{
    double rate, limit, delay, jitter;
    struct chain loss = {0};
    int reorder, rest = 0;
    if (sscanf(text, "%lf %lf %lf %lf %d %lf %lf %lf %lf %n", &rate, &limit, &delay, &jitter, &reorder, &loss.good,
               &loss.bad, &loss.p, &loss.r, &rest) != 9)
        return NULL;
    l->up = rate > 0;
    l->rate = l->up ? rate : l->rate;
    l->limit = limit, l->delay = delay, l->jitter = jitter, l->reorder = reorder != 0;
    loss.is_bad = l->loss.is_bad && loss.p > 0;
    l->loss = loss;
    return text + rest;
}

static bool attach(int index, const char *rest)
{
    struct link *l = &links[index];
    char interface[IFNAMSIZ];
    int state = 0, path = 0;
    if (l->namespace)
        return fail("link %d is attached already", index);
    *l = (struct link){.clock = clock_now()};
    const char *port = NULL;
    if (sscanf(rest, "%lu %n", &l->random, &state) == 1 && state)
        port = read_state(l, rest + state);
    if (!port || sscanf(port, "%15s %n", interface, &path) != 1 || !path)
        return fail("cannot read: attach %d %s", index, rest);
    if (!join_namespace(l, interface, port + path))
        return false;
    if (!configure_queue(l, NFQNL_CFG_CMD_BIND)) {
        int reason = errno;
        leave_namespace(l);
        return fail("NFQUEUE %d of %s: %s", index, port + path, strerror(reason));
    }
    if (index >= link_count)
        link_count = index + 1;
    return true;
}

static bool set(struct link *l, const char *rest)
{
    advance(l, clock_now());
    return read_state(l, rest) ? true : fail("cannot read: set %s", rest);
}

static bool unfollow(struct link *l)
{
    advance(l, clock_now());
    if (l->schedule.moments)
        munmap((void *)l->schedule.moments, l->schedule.count * sizeof *l->schedule.moments);
    l->schedule = (struct schedule){0};
    return true;
}

static bool follow(struct link *l, const char *rest)
{
    struct schedule s = {0};
    char end[8];
    int path = 0;
    if (sscanf(rest, "%lf %lf %7s %n", &s.began, &s.bytes, end, &path) != 3 || !path || s.bytes <= 0)
        return fail("cannot read: follow %s", rest);
    s.began -= (double)epoch.tv_sec + (double)epoch.tv_nsec * 1e-9;
    s.end = strcmp(end, "loop") == 0 ? LOOP : strcmp(end, "hold") == 0 ? HOLD : STOP;
    int file = open(rest + path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) < 0)
        return fail("schedule %s: %s", rest + path, strerror(errno));
    s.count = (size_t)status.st_size / sizeof *s.moments;
    s.moments = s.count ? mmap(NULL, s.count * sizeof *s.moments, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    close(file);
    if (s.moments == MAP_FAILED)
        return fail("schedule %s holds no moments", rest + path);
    unfollow(l);
    pass_over(&s, l->clock);
    l->schedule = s;
    return true;
}

static bool detach(struct link *l)
{
    bool unbound = configure_queue(l, NFQNL_CFG_CMD_UNBIND); /* the kernel drops what it held */
    int reason = errno;
    leave_namespace(l);
    unfollow(l);
    free(l->ring);
    l->ring = NULL;
    l->size = l->head = l->serving = l->tail = 0;
    return unbound ? true : fail("unbinding NFQUEUE %d: %s", (int)(l - links), strerror(reason));
}

static bool report_counters(void)
{
    size_t used = strlen(answer);
    double now = clock_now();
    for (struct link *l = links; l < links + link_count; l++) {
        if (!l->namespace)
            continue;
        advance(l, now);
        bool steady = l->stretch.time >= STEADY;   /* the one that goes on counts too */
        used += (size_t)snprintf(answer + used, sizeof answer - used,
                                 "\n%d %lu %lu %lu %lu %.0f %.9f %.9f %.0f %.0f",
                                 (int)(l - links), l->count.packets, l->count.bytes, l->count.dropped_queue,
                                 l->count.dropped_loss, fmax(l->backlog, 0), l->count.busy,
                                 l->count.steady.time + (steady ? l->stretch.time : 0),
                                 l->count.steady.bytes + (steady ? l->stretch.bytes : 0),
                                 l->count.steady.allowed + (steady ? l->stretch.allowed : 0));
        if (used >= sizeof answer)
            return fail("more counters than one message holds");
    }
    return true;
}

static bool execute(const char *line)
{
    char verb[16];
    int index, rest = 0;
    if (strcmp(line, "counters") == 0)
        return report_counters();
    if (sscanf(line, "%15s %d %n", verb, &index, &rest) != 2 || !rest || index < 0 || index >= LINKS_AT_MOST)
        return fail("cannot read: %s", line);
    if (strcmp(verb, "attach") == 0)
        return attach(index, line + rest);
    if (!links[index].namespace)
        return fail("link %d is not attached", index);
    if (strcmp(verb, "set") == 0)
        return set(&links[index], line + rest);
    if (strcmp(verb, "follow") == 0)
        return follow(&links[index], line + rest);
    if (strcmp(verb, "unfollow") == 0)
        return unfollow(&links[index]);
    if (strcmp(verb, "detach") == 0)
        return detach(&links[index]);
    return fail("no such command: %s", line);
}

/* Execute one message. False: the parent has gone. */
static bool serve_command(void)
{
    static char batch[COMMAND_BYTES];
    ssize_t length = recv(STDIN_FILENO, batch, sizeof batch - 1, 0);
    if (length <= 0)
        return false;
    batch[length] = 0;
    strcpy(answer, "ok");
    char *rest = batch;
    for (char *line = strtok_r(rest, "\n", &rest); line && execute(line); line = strtok_r(NULL, "\n", &rest))
        ;
    return send(STDIN_FILENO, answer, strlen(answer), MSG_NOSIGNAL) >= 0;
}

/* ── life ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Be on time where the system lets us: in front of ordinary processes, never paged out, timers unrounded. */
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
    take_priority();
    pid_t parent = getppid();
    double passes = PASSES_AT_ONCE, counted = 0; /* passes we may make, and since when that is so */
    while (getppid() == parent) {
        double next = INFINITY, now = clock_now();
        for (struct link *l = links; l < links + link_count; l++)
            if (l->namespace)
                next = fmin(next, due(l));
        struct timespec wait = duration(fmin(next - early - now, PARENT_CHECK));
        struct epoll_event events[64];
        int ready = epoll_pwait2(poller, events, 64, &wait, NULL);
        now = clock_now();
        passes = fmin(passes + (now - counted) / GRAIN, PASSES_AT_ONCE) - 1;
        counted = now;
        early = passes < 0 ? GRAIN / 2 : WAKE_TIME;
        if (passes < 0) {
            wait = duration(-passes * GRAIN);
            clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
            ready = epoll_wait(poller, events, 64, 0);
        }
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
