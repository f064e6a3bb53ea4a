/* The kernel's queues: packets' headers come in over netlink, verdicts go out. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core.h"

/* Send the collected messages; the kernel has carried them out when this returns. If a drop were lost, a later batch
 * verdict would let its packet through, so a failure aborts: every link is dead, and the parent reports it. */
void flush_verdicts(struct namespace *n)
{
    if (n->verdict_bytes && send(n->socket, n->verdicts, n->verdict_bytes, 0) < 0) {
        perror("testbed-shaper: verdicts refused");
        abort();
    }
    n->verdict_bytes = 0;
}

/* Add a message to those of the next flush. */
static void say(struct namespace *n, const struct nlmsghdr *message)
{
    if (n->verdict_bytes + message->nlmsg_len > sizeof n->verdicts)
        flush_verdicts(n);
    memcpy(n->verdicts + n->verdict_bytes, message, message->nlmsg_len);
    n->verdict_bytes += NLMSG_ALIGN(message->nlmsg_len);
}

/* One verdict: NFQNL_MSG_VERDICT on the packet `id` alone, NFQNL_MSG_VERDICT_BATCH on every packet up to it. */
void give_verdict(struct link *l, uint8_t scope, uint32_t id, uint32_t verdict)
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
    say(l->namespace, &message.netlink);
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

/* An attribute's data; NULL if it is missing or has less than `least` bytes. */
static const void *attribute(const struct attributes *a, int type, size_t least)
{
    return a->length[type] >= least ? a->data[type] : NULL;
}

static uint32_t number(const struct attributes *a, int type, uint32_t otherwise)
{
    uint32_t value;
    const void *data = attribute(a, type, sizeof value);
    if (!data)
        return otherwise;
    memcpy(&value, data, sizeof value);
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

static void read_packet(const struct namespace *n, const struct nlmsghdr *message, double now)
{
    struct attributes a;
    const struct nfgenmsg *queue = NLMSG_DATA(message);
    if (message->nlmsg_len < NLMSG_LENGTH(sizeof *queue))
        return;
    parse(message, &a);
    const struct nfqnl_msg_packet_hdr *header = attribute(&a, NFQA_PACKET_HDR, sizeof *header);
    uint16_t index = ntohs(queue->res_id);
    if (!header || index >= LINKS_AT_MOST || links[index].namespace != n)   /* of the number's previous link */
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

/* Read the packets waiting in a namespace. Returns the kernel's answer to request `sequence` if it is among them: 0 or an
 * errno. Answers to verdicts (sequence 0) are always errors and are ignored: the kernel itself drops the packets of an
 * interface that is removed, and then rejects verdicts on them. */
int read_packets(struct namespace *n, uint32_t sequence)
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
                    read_packet(n, m, now);
                } else if (m->nlmsg_type == NLMSG_ERROR && sequence && m->nlmsg_seq == sequence
                           && m->nlmsg_len >= NLMSG_LENGTH(sizeof(struct nlmsgerr))) {
                    result = -((struct nlmsgerr *)NLMSG_DATA(m))->error;
                }
            }
        }
    }
    return result;
}

/* A message about a link's queue, to which attributes are added. */
struct request {
    struct nlmsghdr netlink;
    struct nfgenmsg queue;
    char attributes[128];
};

static struct request request_for(const struct link *l)
{
    return (struct request){
        .netlink = {.nlmsg_len = offsetof(struct request, attributes), .nlmsg_flags = NLM_F_REQUEST,
                    .nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_CONFIG},
        .queue = {.nfgen_family = AF_UNSPEC, .version = NFNETLINK_V0, .res_id = htons((uint16_t)(l - links))},
    };
}

static void put(struct request *r, uint16_t type, const void *data, uint16_t length)
{
    struct nlattr attribute = {.nla_len = NLA_HDRLEN + length, .nla_type = type};
    char *at = (char *)r + r->netlink.nlmsg_len;
    memcpy(at, &attribute, sizeof attribute);
    memcpy(at + NLA_HDRLEN, data, length);
    r->netlink.nlmsg_len += NLA_ALIGN(attribute.nla_len);
}

static void put_number(struct request *r, uint16_t type, uint32_t value)
{
    put(r, type, &(uint32_t){htonl(value)}, sizeof value);
}

/* Let the kernel hold as many packets as the link's queue and pipe may, in the smallest size, and those not read yet. The
 * limit only grows, at least twofold: packets of an earlier state may still be there, and traces change it often. */
void fit_kernel_queue(struct link *l)
{
    double smallest = ETHERNET_HEADER + sizeof(struct iphdr);
    double bytes = l->limit + SUPER_PACKET + l->rate * (l->delay + l->jitter);
    double wanted = fmin(bytes / smallest + UNREAD_AT_MOST, KERNEL_QUEUE);
    if (l->kernel_queue >= wanted)
        return;
    l->kernel_queue = (uint32_t)fmin(exp2(ceil(log2(wanted))), KERNEL_QUEUE);
    if (!l->namespace)   /* binding sends the limit */
        return;
    struct request r = request_for(l);
    put_number(&r, NFQA_CFG_QUEUE_MAXLEN, l->kernel_queue);
    say(l->namespace, &r.netlink);
}

/* Bind or unbind a link's queue, and wait for the kernel's answer. Returns false with errno set on failure.
 *
 * Pending verdicts are sent before it, and those given meanwhile right after, so that none meets the number's next
 * link. */
bool configure_queue(struct link *l, uint8_t command)
{
    struct namespace *n = l->namespace;
    struct request r = request_for(l);
    put(&r, NFQA_CFG_CMD, &(struct nfqnl_msg_config_cmd){.command = command}, sizeof(struct nfqnl_msg_config_cmd));
    if (command == NFQNL_CFG_CMD_BIND) {
        struct nfqnl_msg_config_params params = {htonl(COPY_BYTES), NFQNL_COPY_PACKET};
        put(&r, NFQA_CFG_PARAMS, &params, sizeof params);
        put_number(&r, NFQA_CFG_QUEUE_MAXLEN, l->kernel_queue);
        put_number(&r, NFQA_CFG_FLAGS, NFQA_CFG_F_GSO);
        put_number(&r, NFQA_CFG_MASK, NFQA_CFG_F_GSO);
    }
    r.netlink.nlmsg_seq = ++n->sequence;
    r.netlink.nlmsg_flags |= NLM_F_ACK;
    read_packets(n, 0);   /* the kernel's answer needs room in the buffer */
    flush_verdicts(n);
    if (send(n->socket, &r, r.netlink.nlmsg_len, 0) < 0)
        return false;
    int result;
    while ((result = read_packets(n, n->sequence)) == NO_ANSWER)
        if (poll(&(struct pollfd){.fd = n->socket, .events = POLLIN}, 1, 1000) <= 0) {
            result = ETIMEDOUT;
            break;
        }
    flush_verdicts(n);
    return (errno = result) == 0;
}

bool open_socket(struct namespace *n)
{
    n->socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_NETFILTER);
    if (n->socket < 0)
        return n->socket = 0, false;
    int size = RECEIVE_BUFFER, on = 1;
    if (setsockopt(n->socket, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) < 0)
        setsockopt(n->socket, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(n->socket, SOL_NETLINK, NETLINK_NO_ENOBUFS, &on, sizeof on);
    setsockopt(n->socket, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = n};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, n->socket, &event) < 0) {
        int reason = errno;
        close(n->socket);
        n->socket = 0;
        return errno = reason, false;
    }
    return true;
}
