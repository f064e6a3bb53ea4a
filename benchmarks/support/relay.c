/* A peer of the shaping core: frames cross each link through this process, which holds them until they are due.
 *
 *     router ─► TAP ─► read() ─► [ server at RATE | LIMIT bytes wait | DELAY ] ─► write() ─► TAP ─► router
 *
 * Usage: relay RATE DELAY LIMIT (NETNS INTERFACE NETNS INTERFACE)…, bytes/s, s, bytes. Says "ready" when the TAPs are
 * there, and ends with its standard input. Super-packets cross whole (virtio headers), as they do in the core.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 65536 + 64, WIRES_AT_MOST = 128, READS_A_PASS = 64 };
static const double GRAIN = 250e-6;   /* the core's, so that both serve as much a pass */

struct frame {
    struct frame *next;
    double release;
    size_t length;
    char data[];
};

/* One direction. `free` is when its server has sent all it was given. */
struct wire {
    int in, out;
    double free;
    struct frame *first, **last;
};

static struct wire wires[WIRES_AT_MOST];
static double rate, delay, limit;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int fail(const char *what)
{
    perror(what);
    exit(1);
}

static int open_tap(const char *netns, const char *name)
{
    int space = open(netns, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) < 0)
        fail(netns);
    close(space);
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request) < 0 || ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0)
        fail(name);
    return tap;
}

/* Bytes of the frames that a packet stands for, each with headers of its own. */
static double wire_bytes(const struct frame *f)
{
    const struct virtio_net_hdr *header = (const void *)f->data;
    double bytes = (double)(f->length - sizeof *header);
    if (header->gso_type == VIRTIO_NET_HDR_GSO_NONE || !header->gso_size)
        return bytes;
    return bytes + (ceil((bytes - header->hdr_len) / header->gso_size) - 1) * header->hdr_len;
}

static void take_in(struct wire *w, double now)
{
    static char buffer[LONGEST];
    for (int reads = 0; reads < READS_A_PASS; reads++) {
        ssize_t length = read(w->in, buffer, sizeof buffer);
        if (length <= 0)
            return;
        if ((w->free - now) * rate >= limit)
            continue;
        struct frame *f = malloc(sizeof *f + (size_t)length);
        if (!f)
            fail("malloc");
        memcpy(f->data, buffer, (size_t)length);
        f->length = (size_t)length;
        w->free = fmax(w->free, now) + wire_bytes(f) / rate;
        f->release = w->free + delay;
        f->next = NULL;
        *w->last = f;
        w->last = &f->next;
    }
}

static void let_out(struct wire *w, double now)
{
    while (w->first && w->first->release <= now) {
        struct frame *f = w->first;
        ssize_t written = write(w->out, f->data, f->length);
        (void)written;   /* a TAP that is down loses it */
        w->first = f->next;
        if (!w->first)
            w->last = &w->first;
        free(f);
    }
}

int main(int count, char **words)
{
    if (count < 8 || count % 4)
        return 2;
    rate = atof(words[1]), delay = atof(words[2]), limit = atof(words[3]);
    int poller = epoll_create1(EPOLL_CLOEXEC), used = 0;
    struct epoll_event parent = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &parent);
    for (int i = 4; i + 3 < count && used + 2 <= WIRES_AT_MOST; i += 4) {
        int a = open_tap(words[i], words[i + 1]), b = open_tap(words[i + 2], words[i + 3]);
        int ends[2][2] = {{a, b}, {b, a}};
        for (int way = 0; way < 2; way++, used++) {
            struct wire *w = &wires[used];
            *w = (struct wire){.in = ends[way][0], .out = ends[way][1], .last = &w->first};
            struct epoll_event event = {.events = EPOLLIN, .data.ptr = w};
            epoll_ctl(poller, EPOLL_CTL_ADD, w->in, &event);
        }
    }
    prctl(PR_SET_TIMERSLACK, 1);
    sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1});
    puts("ready");
    fflush(stdout);
    for (double passed = 0;;) {
        double next = INFINITY, now = now_s();
        for (struct wire *w = wires; w < wires + used; w++)
            if (w->first)
                next = fmin(next, w->first->release);
        double wait = fmin(fmax(next - now, 0), 1.0);
        struct epoll_event events[WIRES_AT_MOST];
        struct timespec until = {.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - floor(wait)) * 1e9)};
        epoll_pwait2(poller, events, WIRES_AT_MOST, &until, NULL);
        double early = passed + GRAIN - now_s();
        if (early > 0)
            clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = (long)(early * 1e9)}, NULL);
        passed = now = now_s();
        int ready = epoll_wait(poller, events, WIRES_AT_MOST, 0);
        for (int i = 0; i < ready; i++) {
            if (!events[i].data.ptr)
                return 0;
            take_in(events[i].data.ptr, now);
        }
        for (struct wire *w = wires; w < wires + used; w++)
            let_out(w, now);
    }
}
