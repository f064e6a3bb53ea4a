/* Commands from the parent: each message is one batch, executed at one instant. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"

/* The longest line of counters, and one more than the digits of the longest number of a message. */
enum { COUNTERS_LINE = 512, NUMBER_DIGITS = 20 };

/* The largest moment of a schedule in ms, which a double holds exactly. */
static const uint64_t MOMENT_AT_MOST = (uint64_t)1 << 53;

static char answer[COMMAND_BYTES];
static size_t number_length;   /* of the answer's beginning: the message's number */
static int came_along;         /* the file that came with the message, or -1 */

/* Begin a successful answer to the message of this number. */
static void answer_to(const char *number, size_t length)
{
    memcpy(answer, number, length);
    strcpy(answer + length, " ok");
    number_length = length;
}

/* Replace the answer by an error. Returns false, for the caller to return. */
__attribute__((format(printf, 1, 2))) static bool fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t used = number_length + (size_t)sprintf(answer + number_length, " error ");
    vsnprintf(answer + used, sizeof answer - used, format, arguments);
    va_end(arguments);
    return false;
}

/* Inside the namespace: read the port's MTU, and turn off IPv6, which no rule would catch. */
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

/* A number in a command: its name in main.c's list, and its bounds. */
struct field {
    const char *name;
    double least, most;
    bool whole;
};

static const struct field LINK_FIELD = {"LINK", 0, LINKS_AT_MOST - 1, true};
static const struct field SEED_FIELD = {"SEED", 0, UINT32_MAX, true};
static const struct field MOMENT_FIELD = {"MOMENT", -1e12, 1e12};

/* The bounds exceed those of files: 100 Gbit/s, a million bandwidth-delay products, a minute. */
static const struct field STATE_FIELDS[] = {
    {"RATE", 0, 1e12}, {"LIMIT", 0, 1e19}, {"DELAY", 0, 3600}, {"JITTER", 0, 3600}, {"REORDER", 0, 1, true},
    {"GOOD", 0, 1},    {"BAD", 0, 1},      {"P", 0, 1},        {"R", 0, 1},
    {"DISCIPLINE", TAIL_DROP, RED, true},  {"LEAST", 0, 1e19}, {"MOST", 0, 1e19},   {"CHANCE", 0, 1}, {"WEIGHT", 0, 1},
};

/* Read a number; return the text after it, or NULL after fail(). NULL is passed through, so that reads can be chained. */
static const char *read_number(const char *text, const struct field *f, double *value)
{
    if (!text)
        return NULL;
    char *end;
    *value = strtod(text, &end);
    bool within = *value >= f->least && *value <= f->most;   /* both are false for NaN */
    if (end != text && (*end == ' ' || !*end) && within && !(f->whole && *value != floor(*value)))
        return end + strspn(end, " ");
    fail("%s must be a %s from %g to %g, here: %.40s", f->name, f->whole ? "whole number" : "number", f->least, f->most,
         *text ? text : "nothing");
    return NULL;
}

/* Read a state; return the text after it, or NULL after fail(). */
static const char *read_state(const char *text, struct state *s)
{
    double reorder = 0, kind = 0;
    struct discipline *d = &s->discipline;
    *s = (struct state){0};
    double *values[] = {&s->rate, &s->limit, &s->delay, &s->jitter, &reorder,
                        &s->loss.good, &s->loss.bad, &s->loss.p, &s->loss.r,
                        &kind, &d->least, &d->most, &d->chance, &d->weight};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        text = read_number(text, &STATE_FIELDS[i], values[i]);
    if (!text)
        return NULL;   /* a value may be out of its bounds */
    s->reorder = reorder != 0;
    d->kind = (enum kind)kind;
    return text;
}

/* Read a word of less than `size` bytes; return the text after it, or NULL after fail(). */
static const char *read_word(const char *text, const char *name, char *word, size_t size)
{
    if (!text)
        return NULL;
    size_t length = strcspn(text, " ");
    if (length == 0 || length >= size) {
        fail("%s must be a word of 1 to %zu characters, here: %.40s", name, size - 1, *text ? text : "nothing");
        return NULL;
    }
    memcpy(word, text, length);
    word[length] = 0;
    return text + length + strspn(text + length, " ");
}

/* Return whether a command was read without error and ends here. */
static bool ends(const char *text)
{
    return text && (!*text || fail("more than the command has: %.40s", text));
}

static int number_of(const struct link *l)
{
    return (int)(l - links);
}

static void end_schedule(struct link *l)
{
    if (l->schedule.moments)
        munmap((void *)l->schedule.moments, l->schedule.count * sizeof *l->schedule.moments);
    l->schedule = (struct schedule){0};
}

/* Release everything of a link that is attached, or whose attachment failed. */
static void clear(struct link *l)
{
    leave_namespace(l);
    end_schedule(l);
    forget_link(l);
    free(l->changes);
    free(l->ring);
    *l = (struct link){0};
}

static bool attach(struct link *l, const char *rest)
{
    char interface[IFNAMSIZ];
    double seed = 0;
    struct state first;
    if (l->namespace)
        return fail("link %d is attached already", number_of(l));
    const char *path = read_word(read_state(read_number(rest, &SEED_FIELD, &seed), &first), "INTERFACE", interface,
                                 sizeof interface);
    if (!path)
        return false;
    if (strchr(interface, '/') || *path != '/')
        return fail("INTERFACE has no slash and NAMESPACE begins with one, here: %s %.40s", interface, path);
    *l = (struct link){.clock = clock_now(), .random = (uint64_t)seed};
    enforce(l, &first);
    if (!join_namespace(l, interface, path))
        return false;
    if (!configure_queue(l, NFQNL_CFG_CMD_BIND)) {
        int reason = errno;
        clear(l);
        return fail("NFQUEUE %d of %s: %s", number_of(l), path, strerror(reason));
    }
    if (number_of(l) >= link_count)
        link_count = number_of(l) + 1;
    return true;
}

static bool set(struct link *l, const char *rest)
{
    struct state s;
    if (!ends(read_state(rest, &s)))
        return false;
    advance(l, clock_now());
    enforce(l, &s);
    return true;
}

static bool later(struct link *l, const char *rest)
{
    struct change c;
    if (!ends(read_state(read_number(rest, &MOMENT_FIELD, &c.moment), &c.state)))
        return false;
    if (l->changes_end - l->change >= CHANGES_AT_MOST)
        return fail("more than %d future changes of link %d", CHANGES_AT_MOST, number_of(l));
    c.moment -= (double)epoch.tv_sec + (double)epoch.tv_nsec * 1e-9;
    expect(l, &c);
    return true;
}

static bool forget(struct link *l, const char *rest)
{
    if (!ends(rest))
        return false;
    l->change = l->changes_end;
    return true;
}

static bool unfollow(struct link *l, const char *rest)
{
    if (!ends(rest))
        return false;
    advance(l, clock_now());
    end_schedule(l);
    return true;
}

/* Map the file of moments that came with the message. They must rise, for the search, and the last one must not be 0,
 * or a loop would never end. */
static bool map_moments(struct schedule *s)
{
    struct stat status;
    if (came_along < 0 || fstat(came_along, &status) < 0)
        return fail("no file of moments came with it");
    s->count = (size_t)status.st_size / sizeof *s->moments;
    s->moments = s->count ? mmap(NULL, s->count * sizeof *s->moments, PROT_READ, MAP_PRIVATE, came_along, 0) : MAP_FAILED;
    if (s->moments == MAP_FAILED)
        return fail("the file holds no moments");
    bool rises = s->moments[s->count - 1] > 0 && s->moments[s->count - 1] <= MOMENT_AT_MOST;
    for (size_t i = 1; i < s->count; i++)
        rises &= s->moments[i - 1] <= s->moments[i];
    if (rises)
        return true;
    munmap((void *)s->moments, s->count * sizeof *s->moments);
    return fail("the moments do not rise from 0 on to %lu ms at most", MOMENT_AT_MOST);
}

static bool follow(struct link *l, const char *rest)
{
    static const struct field BEGAN = {"BEGAN", -1e12, 1e12}, BYTES = {"BYTES", 1e-3, 1e12};
    static const char *const ENDS[] = {[LOOP] = "loop", [HOLD] = "hold", [STOP] = "stop"};
    struct schedule s = {0};
    char end[8];
    if (!ends(read_word(read_number(read_number(rest, &BEGAN, &s.began), &BYTES, &s.bytes), "END", end, sizeof end)))
        return false;
    for (s.end = LOOP; strcmp(end, ENDS[s.end]) != 0; s.end++)
        if (s.end == STOP)
            return fail("END must be loop, hold or stop, here: %s", end);
    s.began -= (double)epoch.tv_sec + (double)epoch.tv_nsec * 1e-9;
    if (!map_moments(&s))
        return false;
    advance(l, clock_now());
    end_schedule(l);
    pass_over(&s, l->clock);
    l->schedule = s;
    return true;
}

static bool detach(struct link *l, const char *rest)
{
    if (!ends(rest))
        return false;
    if (!l->namespace)
        return true;
    bool unbound = configure_queue(l, NFQNL_CFG_CMD_UNBIND); /* the kernel drops the packets it held */
    int reason = errno;
    clear(l);
    return unbound ? true : fail("unbinding NFQUEUE %d: %s", number_of(l), strerror(reason));
}

/* Write a line for each link from this one on, as many as there is room for. */
static bool report_counters(struct link *from, const char *rest)
{
    if (!ends(rest))
        return false;
    size_t used = strlen(answer);
    double now = clock_now();
    for (struct link *l = from; l < links + link_count && sizeof answer - used > COUNTERS_LINE; l++) {
        if (!l->namespace)
            continue;
        advance(l, now);
        bool steady = l->stretch.time >= STEADY;   /* the present one counts too */
        used += (size_t)snprintf(answer + used, sizeof answer - used,
                                 "\n%d %lu %lu %lu %lu %.0f %.9f %.9f %.0f %.0f",
                                 number_of(l), l->count.packets, l->count.bytes, l->count.dropped_queue,
                                 l->count.dropped_loss, fmax(l->backlog, 0), l->count.busy,
                                 l->count.steady.time + (steady ? l->stretch.time : 0),
                                 l->count.steady.bytes + (steady ? l->stretch.bytes : 0),
                                 l->count.steady.allowed + (steady ? l->stretch.allowed : 0));
    }
    return true;
}

static bool execute(const char *line)
{
    static const struct {
        const char *verb;
        bool (*run)(struct link *l, const char *rest);
        bool of_any;   /* allowed for a link that is not attached */
    } commands[] = {
        {"attach", attach, true}, {"detach", detach, true}, {"counters", report_counters, true},
        {"set", set, false}, {"later", later, false}, {"forget", forget, false},
        {"follow", follow, false}, {"unfollow", unfollow, false},
    };
    if (strcmp(line, "applied") == 0) {
        size_t used = strlen(answer);
        report_changes(answer + used, sizeof answer - used);
        return true;
    }
    char verb[16];
    double link = 0;
    const char *rest = read_number(read_word(line, "a command", verb, sizeof verb), &LINK_FIELD, &link);
    if (!rest)
        return false;
    struct link *l = &links[(int)link];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(verb, commands[i].verb) != 0)
            continue;
        if (!l->namespace && !commands[i].of_any)
            return fail("link %d is not attached", number_of(l));
        return commands[i].run(l, rest);
    }
    return fail("no such command: %s", verb);
}

/* Receive one message: its text, ended by a 0, and its file, if there is one. Returns its length, 0 at end of file. */
static size_t take_message(char *text, size_t size)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof came_along)];
    } control = {0};
    struct iovec vector = {text, size - 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t length = recvmsg(STDIN_FILENO, &message, MSG_CMSG_CLOEXEC | MSG_TRUNC);
    const struct cmsghdr *sent = CMSG_FIRSTHDR(&message);
    came_along = -1;
    if (sent && sent->cmsg_level == SOL_SOCKET && sent->cmsg_type == SCM_RIGHTS)
        memcpy(&came_along, CMSG_DATA(sent), sizeof came_along);
    size_t whole = length > 0 ? (size_t)length : 0;
    text[whole < size ? whole : size - 1] = 0;
    return whole;
}

/* Execute one message, whose first line is its number. Returns false if the parent has gone. */
bool serve_command(void)
{
    static char batch[COMMAND_BYTES];
    size_t length = take_message(batch, sizeof batch);
    if (length == 0)
        return false;
    size_t digits = strspn(batch, "0123456789");
    bool numbered = digits > 0 && digits < NUMBER_DIGITS && batch[digits] == '\n';
    answer_to(numbered ? batch : "0", numbered ? digits : 1);
    if (!numbered)
        fail("a message begins with its number");
    else if (length >= sizeof batch)
        fail("a message has %zu bytes, and %zu at most", length, sizeof batch - 1);
    else if (strlen(batch) < length)
        fail("a message has no byte of 0");
    else {
        char *rest = batch + digits;
        for (char *line = strtok_r(rest, "\n", &rest); line && execute(line); line = strtok_r(NULL, "\n", &rest))
            ;
    }
    if (came_along >= 0)
        close(came_along);
    /* A parent that does not read gets no answer: waiting for it would stop every link. */
    return send(STDIN_FILENO, answer, strlen(answer), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0
        || (errno != EPIPE && errno != ECONNRESET && errno != ENOTCONN);
}
