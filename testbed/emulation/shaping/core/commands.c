/* Commands from the parent: each message is one batch, executed at one instant. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"

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
        return n ? fail("entering namespace %s: %s", path, strerror(errno))
                 : fail("more than %d namespaces", NAMESPACES_AT_MOST);
    bool ready = prepare_interface(l, interface)
                 && (found || open_socket(n) || fail("netlink socket: %s", strerror(errno)));
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

/* Read a state; the text after it, or NULL. */
static const char *read_state(struct state *s, const char *text)
{
    int reorder, rest = 0;
    *s = (struct state){0};
    if (sscanf(text, "%lf %lf %lf %lf %d %lf %lf %lf %lf %n", &s->rate, &s->limit, &s->delay, &s->jitter, &reorder,
               &s->loss.good, &s->loss.bad, &s->loss.p, &s->loss.r, &rest) != 9)
        return NULL;
    s->reorder = reorder != 0;
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
    struct state first;
    if (sscanf(rest, "%lu %n", &l->random, &state) == 1 && state)
        port = read_state(&first, rest + state);
    if (!port || sscanf(port, "%15s %n", interface, &path) != 1 || !path)
        return fail("cannot read: attach %d %s", index, rest);
    enforce(l, &first);
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
    struct state s;
    if (!read_state(&s, rest))
        return fail("cannot read: set %s", rest);
    advance(l, clock_now());
    enforce(l, &s);
    return true;
}

static bool later(struct link *l, const char *rest)
{
    struct change c;
    int state = 0;
    if (sscanf(rest, "%lf %n", &c.moment, &state) != 1 || !state || !read_state(&c.state, rest + state))
        return fail("cannot read: later %s", rest);
    c.moment -= (double)epoch.tv_sec + (double)epoch.tv_nsec * 1e-9;
    expect(l, &c);
    return true;
}

static bool forget(struct link *l)
{
    forget_changes(l);
    return true;
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
    forget_changes(l);
    free(l->changes);
    free(l->ring);
    l->changes = NULL, l->changes_room = 0;
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
    if (strcmp(line, "applied") == 0) {
        size_t used = strlen(answer);
        report_changes(answer + used, sizeof answer - used);
        return true;
    }
    if (sscanf(line, "%15s %d %n", verb, &index, &rest) != 2 || !rest || index < 0 || index >= LINKS_AT_MOST)
        return fail("cannot read: %s", line);
    if (strcmp(verb, "attach") == 0)
        return attach(index, line + rest);
    if (!links[index].namespace)
        return fail("link %d is not attached", index);
    if (strcmp(verb, "set") == 0)
        return set(&links[index], line + rest);
    if (strcmp(verb, "later") == 0)
        return later(&links[index], line + rest);
    if (strcmp(verb, "forget") == 0)
        return forget(&links[index]);
    if (strcmp(verb, "follow") == 0)
        return follow(&links[index], line + rest);
    if (strcmp(verb, "unfollow") == 0)
        return unfollow(&links[index]);
    if (strcmp(verb, "detach") == 0)
        return detach(&links[index]);
    return fail("no such command: %s", line);
}

/* Execute one message. False: the parent has gone. */
bool serve_command(void)
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
