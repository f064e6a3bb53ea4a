/* The shaping core between a kernel and a parent that do whatever an input says, by a clock that it sets.
 *
 * An input is a row of records: a kind, the length of what follows (2 bytes, little-endian), and that:
 *
 *     0  time passes: 4 bytes of µs
 *     1  a message of the kernel's comes, in the network namespace of the first byte's number
 *     2  the core does a pass, as its main loop does: reads, lets go of what is due, says verdicts
 *     3  a command of the parent's comes, and the moments of 4 with it
 *     4  moments, 8 bytes each
 *     5  the kernel refuses with this number (1 byte) what is asked next
 *
 * What the core asks of the system is wrapped (--wrap of the linker), so that nothing of the machine is touched: there
 * is one interface, `lo`, and namespaces are files /0 to /7. All that it says to the kernel and to its parent is checked.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <net/if.h>
#include <poll.h>
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core.h"

enum { TIME, KERNEL, PASS, COMMAND, MOMENTS, REFUSE, KINDS };
enum { NAMESPACES = 8, UNREAD = MESSAGES_A_READ * READS_A_PASS, LINKS = 64 };

/* Messages of the kernel's that are not read yet, in one namespace. */
static struct unread {
    int socket;
    size_t first, end;
    struct { const void *data; size_t size; } messages[UNREAD + 1];   /* and an answer */
} unread[NAMESPACES];
static struct { struct nlmsghdr netlink; struct nlmsgerr error; } answers[NAMESPACES];

static double now;
static int refusal;
static const uint8_t *command;
static size_t command_size;
static int moments = -1;
static unsigned long long messages_read, commands_read;

static void __attribute__((destructor)) tell(void)
{
    fprintf(stderr, "stat::messages: %llu\nstat::commands: %llu\n", messages_read, commands_read);
}

static void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "the core said what it may not: %s\n", what);
        abort();
    }
}

/* --- what the core asks of the system */

double __wrap_clock_now(void)
{
    return now;
}

int __wrap_setns(int file, int kind)
{
    (void)file, (void)kind;
    return 0;
}

int __wrap_poll(struct pollfd *files, nfds_t count, int timeout)
{
    (void)files, (void)count, (void)timeout;
    return 0;   /* what the kernel says is there already */
}

/* A file of its own for each namespace: what tells two apart is the inode, which eventfds share. */
int __wrap_open(const char *path, int flags, ...)
{
    (void)flags;
    if (path[0] == '/' && path[1] >= '0' && path[1] < '0' + NAMESPACES && !path[2]) {
        static int files[NAMESPACES];
        int number = path[1] - '0';
        if (!files[number])
            files[number] = memfd_create("namespace", MFD_CLOEXEC);
        return dup(files[number]);
    }
    return errno = ENOENT, -1;
}

int __wrap_ioctl(int file, unsigned long what, struct ifreq *request)
{
    (void)file;
    if (what != SIOCGIFMTU || strcmp(request->ifr_name, "lo") != 0)
        return errno = ENODEV, -1;
    request->ifr_mtu = 1500;
    return 0;
}

int __wrap_socket(int family, int type, int protocol)
{
    (void)type, (void)protocol;
    int file = eventfd(0, EFD_CLOEXEC);
    for (struct unread *u = unread; family == AF_NETLINK && u < unread + NAMESPACES; u++)
        if (!u->socket) {
            *u = (struct unread){.socket = file};
            break;
        }
    return file;
}

/* Forget what was not read where its socket is closed. */
int __real_close(int file);
int __wrap_close(int file)
{
    for (struct unread *u = unread; u < unread + NAMESPACES; u++)
        if (u->socket == file && file)
            u->socket = 0;
    return __real_close(file);
}

static struct unread *unread_at(int file)
{
    for (struct unread *u = unread; u < unread + NAMESPACES; u++)
        if (u->socket == file)
            return u;
    abort();
}

/* What of a buffer a message does not fill is nobody's to read. */
int __wrap_recvmmsg(int file, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout)
{
    (void)flags, (void)timeout;
    struct unread *u = unread_at(file);
    unsigned got = 0;
    for (; got < count && u->first < u->end; got++, u->first++) {
        struct iovec *room = messages[got].msg_hdr.msg_iov;
        size_t size = u->messages[u->first].size;
        size = size < room->iov_len ? size : room->iov_len;
        ASAN_UNPOISON_MEMORY_REGION(room->iov_base, room->iov_len);
        memcpy(room->iov_base, u->messages[u->first].data, size);
        ASAN_POISON_MEMORY_REGION((char *)room->iov_base + size, room->iov_len - size);
        messages[got].msg_len = (unsigned)size;
        messages_read++;
    }
    if (u->first == u->end)
        u->first = u->end = 0;
    return got ? (int)got : (errno = EAGAIN, -1);
}

static void deliver_to(struct unread *u, const void *data, size_t size)
{
    if (u->end > UNREAD)
        return;
    u->messages[u->end].data = data;
    u->messages[u->end++].size = size;
}

/* Netlink messages, one behind the other, about queues that there can be. */
static void check_netlink(const char *data, size_t size)
{
    int left = (int)size;
    for (const struct nlmsghdr *m = (const void *)data; left > 0; m = NLMSG_NEXT(m, left)) {
        check(NLMSG_OK(m, left), "a netlink message that is none");
        check(m->nlmsg_type >> 8 == NFNL_SUBSYS_QUEUE, "a netlink message that is not about queues");
        const struct nfgenmsg *queue = NLMSG_DATA(m);
        check(ntohs(queue->res_id) < LINKS_AT_MOST, "a queue that there can't be");
    }
}

ssize_t __wrap_send(int file, const void *data, size_t size, int flags)
{
    (void)flags;
    if (file == STDIN_FILENO) {
        const char *rest = data;
        rest += strspn(rest, "0123456789");
        check(rest > (const char *)data, "an answer without a number");
        check(strncmp(rest, " ok", 3) == 0 || strncmp(rest, " error ", 7) == 0, "an answer without an outcome");
        return (ssize_t)size;
    }
    check_netlink(data, size);
    const struct nlmsghdr *m = data;
    if (m->nlmsg_flags & NLM_F_ACK) {
        struct unread *u = unread_at(file);
        answers[u - unread].netlink = (struct nlmsghdr){
            .nlmsg_len = sizeof answers[0], .nlmsg_type = NLMSG_ERROR, .nlmsg_seq = m->nlmsg_seq};
        answers[u - unread].error = (struct nlmsgerr){.error = -refusal};
        refusal = 0;
        deliver_to(u, &answers[u - unread], sizeof answers[0]);
    }
    return (ssize_t)size;
}

ssize_t __wrap_recvmsg(int file, struct msghdr *message, int flags)
{
    (void)file, (void)flags;
    struct iovec *room = message->msg_iov;
    memcpy(room->iov_base, command, command_size < room->iov_len ? command_size : room->iov_len);
    if (moments < 0) {
        message->msg_controllen = 0;
        return (ssize_t)command_size;
    }
    struct cmsghdr *sent = CMSG_FIRSTHDR(message);
    *sent = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof moments)};
    memcpy(CMSG_DATA(sent), &moments, sizeof moments);
    moments = -1;   /* the core closes it */
    return (ssize_t)command_size;
}

/* --- what the input says */

static void execute(const void *text, size_t size)
{
    command = text, command_size = size;
    if (size)   /* an empty one is the parent's end */
        check(serve_command(), "that its parent has gone");
    commands_read++;
}

static void keep_moments(const uint8_t *data, size_t size)
{
    if (moments >= 0)
        close(moments);
    moments = memfd_create("moments", MFD_CLOEXEC);
    if (write(moments, data, size) != (ssize_t)size)
        abort();
}

static void pass(void)
{
    for (struct link *l = links; l < links + link_count; l++)
        if (l->namespace)
            change_due(l, now);
    for (struct namespace *n = namespaces; n < namespaces + namespace_count; n++)
        if (n->socket)
            read_packets(n, 0);
    for (struct link *l = links; l < links + link_count; l++)
        if (l->namespace && due(l) <= now + early)
            release(l, now);
    for (struct namespace *n = namespaces; n < namespaces + namespace_count; n++)
        if (n->socket)
            flush_verdicts(n);
}

static void record(unsigned kind, const uint8_t *data, size_t size)
{
    uint32_t passed = 0;
    switch (kind) {
    case TIME:
        memcpy(&passed, data, size < sizeof passed ? size : sizeof passed);
        now += passed * 1e-6;
        break;
    case KERNEL:
        if (size && unread[data[0] % NAMESPACES].socket)
            deliver_to(&unread[data[0] % NAMESPACES], data + 1, size - 1);
        break;
    case PASS:
        pass();
        break;
    case COMMAND:
        execute(data, size);
        break;
    case MOMENTS:
        keep_moments(data, size);
        break;
    case REFUSE:
        refusal = size ? data[0] : 0;
        break;
    }
}

/* All links are detached again, as an input must not depend on the one before. */
static void end(void)
{
    char text[64];
    refusal = 0;
    for (int link = 0; link < link_count; link++)
        if (links[link].namespace)
            execute(text, (size_t)snprintf(text, sizeof text, "1\ndetach %d", link));
    for (struct unread *u = unread; u < unread + NAMESPACES; u++)
        check(!u->socket, "that a link is detached, and keeps its socket");
    if (moments >= 0)
        close(moments);
    moments = -1;
    link_count = namespace_count = 0;
    now = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!poller) {
        poller = epoll_create1(EPOLL_CLOEXEC);
        early = 125e-6;
    }
    while (size >= 3) {
        unsigned kind = data[0] % KINDS;
        size_t length = (size_t)(data[1] | data[2] << 8);
        data += 3, size -= 3;
        length = length < size ? length : size;
        record(kind, data, length);
        data += length, size -= length;
    }
    end();
    return 0;
}
