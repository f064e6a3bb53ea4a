/* Declarations shared by the parts of the shaping core, which main.c describes. */
#ifndef TESTBED_CORE_H
#define TESTBED_CORE_H

#include <linux/netlink.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

enum {
    LINKS_AT_MOST = 4096,    /* also the queue numbers in use */
    NAMESPACES_AT_MOST = 1024,
    ETHERNET_HEADER = 14,
    COPY_BYTES = 96,         /* of each packet: the longest IPv4 header (60) and a TCP header's fixed part (20) */
    MESSAGE_BYTES = 1024,    /* one packet's message: COPY_BYTES and about 150 of attributes */
    SUPER_PACKET = 68130,    /* bytes on the wire of the longest, as main.c counts them */
    MESSAGES_A_READ = 64,
    READS_A_PASS = 16,       /* so that a flood at one router cannot starve the others' releases */
    VERDICT_BYTES = 8192,
    RECEIVE_BUFFER = 6 << 20,    /* the kernel doubles it; a message there weighs 832 bytes: 15,123 packets not yet read */
    UNREAD_AT_MOST = 1 << 14,    /* more than these, so that the buffer fills first: packets without room in it are counted */
    KERNEL_QUEUE = 1 << 20,      /* packets of one link that the kernel holds at most, whatever its queue */
    CHANGES_AT_MOST = 1 << 16,   /* future ones of one link: rows each 10 ms for ten minutes */
    COMMAND_BYTES = 1 << 18,
};

/* Releases are up to a grain early or late, so a stretch of this many seconds gives the rate to within 0.5 %. Bursts of a
 * chunk or two, of 10 ms each, would show errors of 2.5 % that come from their ends alone. */
static const double STEADY = 0.05;

enum end { LOOP, HOLD, STOP };

/* Moments at which a link may send. */
struct schedule {
    const uint64_t *moments;   /* in ms, rising; the last is also the period of a loop. NULL: there is no schedule */
    size_t count, next;
    double began;              /* where 0 ms of this lap is on our clock */
    double bytes;              /* for each moment */
    enum end end;
};

/* A Gilbert-Elliott chain: each of its two states has its own loss probability. */
struct chain {
    double good, bad;          /* loss */
    double p, r;               /* after each packet: from good to bad, and back */
    bool is_bad;
};

enum kind { TAIL_DROP, CODEL, RED };

/* What drops packets of a queue before its limit does. */
struct discipline {
    enum kind kind;
    double least, most;        /* CoDel: target and interval, in seconds. RED: the two mean lengths, in bytes */
    double chance, weight;     /* RED: the probability at `most`, and a packet's weight in the mean */
};

/* CoDel's state, named as in RFC 8289. */
struct codel {
    bool dropping;
    double first_above, drop_next;   /* first_above is 0 where the wait is below the target */
    uint32_t count, last_count;
};

/* RED's state. */
struct red {
    double average;            /* bytes */
    double idle_since;         /* when the queue became empty */
    double draw;               /* uniform in [0, 1) */
    double between;            /* packets for which the present draw has been in force */
};

/* A link's state: bytes a second, bytes, seconds. A rate of 0 means down. */
struct state {
    double rate, limit, delay, jitter;
    bool reorder;
    struct chain loss;
    struct discipline discipline;
};

/* A future state and its moment. */
struct change {
    double moment;             /* on our clock */
    struct state state;
};

struct packet {
    uint32_t id;       /* the kernel's number, increasing within a queue */
    uint32_t wire;     /* bytes of its frames */
    uint16_t frames;   /* more than 1 for a super-packet */
    bool passed;       /* got its verdict out of order: on a link that reorders, or dropped from the queue */
    bool queued;       /* arrived while another was in the queue: its service follows its predecessor's at once */
    double arrived;
    double left;       /* bytes not yet served */
    double service;    /* seconds its service took */
    double delay;      /* the link's, when it was served */
    double release;    /* when it is due at the far end; known once served */
};

/* A time in which packets left back to back: the bytes that passed, and those that the rate allowed. */
struct stretch {
    double time, bytes, allowed;
};

struct counters {
    uint64_t packets, bytes, dropped_queue, dropped_loss;
    double busy;             /* seconds of all stretches */
    struct stretch steady;   /* the sum of those long enough to measure a rate */
};

struct link {
    struct namespace *namespace;   /* NULL: not attached */
    double rate, delay, jitter, limit;
    bool up, reorder;
    struct chain loss;
    struct discipline discipline;
    struct codel codel;
    struct red red;
    struct schedule schedule;
    struct change *changes;        /* [change, changes_end) are future, in the order of their moments */
    size_t change, changes_end, changes_room;
    uint32_t mtu;
    uint32_t kernel_queue;         /* packets the kernel may hold */
    uint64_t random;
    struct packet *ring;           /* [head, serving) is in the pipe, [serving, tail) is in the queue */
    uint32_t size, head, serving, tail;
    double clock;                  /* the model's time */
    double backlog;                /* bytes of [serving, tail) */
    double last_release;           /* of the model */
    double last_passed;            /* when the last packet really was let through */
    double last_delay;             /* that packet's */
    uint32_t last_id;
    struct stretch stretch;        /* the present one */
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

extern struct link links[LINKS_AT_MOST];
extern struct namespace namespaces[NAMESPACES_AT_MOST];
extern int link_count, namespace_count;   /* one more than the highest index used */
extern int poller, home;                  /* epoll instance; our own network namespace */
extern struct timespec epoch;             /* our clock's 0, on the monotonic one */
extern double early;                      /* seconds by which a packet may leave before it is due; main.c sets it */

/* main.c */
double clock_now(void);

/* model.c: a link's packets, from their arrival until their release. */
void pass_over(struct schedule *s, double now);
void advance(struct link *l, double now);
void arrive(struct link *l, uint32_t id, uint32_t wire, uint16_t frames, double now);
double due(struct link *l);
void release(struct link *l, double now);
double chance(struct link *l);
struct packet *first_in_queue(struct link *l);
void drop_first(struct link *l);

/* discipline.c: packets that are dropped before the queue is full. */
void choose_next(struct link *l);
bool refuses(struct link *l);

/* change.c: future states, put in force at their moments. */
void enforce(struct link *l, const struct state *s);
void expect(struct link *l, const struct change *c);
void forget_link(const struct link *l);
double next_change(const struct link *l);
void change_due(struct link *l, double now);
size_t report_changes(char *text, size_t room);

/* queue.c: the kernel's queues. */
enum { NO_ANSWER = -1 };
bool open_socket(struct namespace *n);
bool configure_queue(struct link *l, uint8_t command);
void fit_kernel_queue(struct link *l);
int read_packets(struct namespace *n, uint32_t sequence);
void give_verdict(struct link *l, uint8_t scope, uint32_t id, uint32_t verdict);
void flush_verdicts(struct namespace *n);

/* commands.c: commands of the parent. */
bool serve_command(void);

#endif
