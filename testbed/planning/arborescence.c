/* Edmonds' contraction of a graph to one node, and the expansion of that node into the tree of a root. `overlay.py`
 * calls both and explains their use.
 *
 * Nodes 0 to n - 1 are the graph's; each contracted cycle becomes another node. A path grows backward: its head takes its
 * cheapest edge in, whose cost is subtracted from all edges into the head. When that edge comes from the path itself, the
 * cycle becomes one node, in the row and the column of the cycle's first node.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define NONE (-1)

/* For each node: `entry`, its edge in (source * n + target) in the cycle that holds it; `owner`, the node that this cycle
 * became; and the nodes that it holds itself, a list from `first` on to the `next`. */
struct hierarchy {
    int64_t *entry, *owner, *first, *next;
};

struct contraction {
    int64_t n, nodes;
    double *into;             /* into[v * n + u]: the rest of the cost of u -> v; infinite without an edge */
    int64_t *edge;            /* the graph's edge behind each of `into` */
    int64_t *node;            /* the node that each row stands for */
    int64_t *path, *place;    /* the path's rows from its begin; each row's position on the path, or NONE */
    int64_t length;           /* of the path */
    double *taken;            /* the cost that was subtracted from each node's edges in */
    double *best;             /* while a cycle becomes a node: its cheapest edges from, or to, the other rows */
    int64_t *best_edge;
    struct hierarchy hierarchy;
};

static struct hierarchy hierarchy_of(int64_t n, int64_t *memory)
{
    return (struct hierarchy){memory, memory + 2 * n, memory + 4 * n, memory + 6 * n};
}

static int64_t cheapest_in(const struct contraction *it, int64_t row)
{
    const double *into = it->into + row * it->n;
    int64_t found = 0;
    for (int64_t u = 1; u < it->n; u++)
        if (into[u] < into[found])
            found = u;
    return found;
}

/* Keep the cheapest of the parallel edges between the cycle and each other row; among equals the first on the path.
 * Edges in lie `along` = n apart for the rows of the cycle and `across` = 1 apart for other rows; edges out vice versa. */
static void merge(struct contraction *it, const int64_t *cycle, int64_t length, int64_t along, int64_t across)
{
    for (int64_t other = 0; other < it->n; other++) {
        int64_t found = cycle[0] * along + other * across;
        for (int64_t i = 1; i < length; i++) {
            int64_t at = cycle[i] * along + other * across;
            if (it->into[at] < it->into[found])
                found = at;
        }
        it->best[other] = it->into[found];
        it->best_edge[other] = it->edge[found];
    }
    for (int64_t i = 0; i < length; i++) {
        it->best[cycle[i]] = INFINITY;
        for (int64_t other = 0; other < it->n; other++)
            it->into[cycle[i] * along + other * across] = INFINITY;
    }
    for (int64_t other = 0; other < it->n; other++) {
        it->into[cycle[0] * along + other * across] = it->best[other];
        it->edge[cycle[0] * along + other * across] = it->best_edge[other];
    }
}

/* Make the path from `source` on one node, in the row of `source`. */
static void close_cycle(struct contraction *it, int64_t source)
{
    const int64_t *cycle = it->path + it->place[source];
    int64_t length = it->length - it->place[source], made = it->nodes++;
    merge(it, cycle, length, it->n, 1);
    merge(it, cycle, length, 1, it->n);
    it->hierarchy.first[made] = it->hierarchy.owner[made] = it->hierarchy.entry[made] = NONE;
    it->taken[made] = 0.0;
    for (int64_t i = length - 1; i >= 0; i--) {
        int64_t held = it->node[cycle[i]];
        it->hierarchy.owner[held] = made;
        it->hierarchy.next[held] = it->hierarchy.first[made];
        it->hierarchy.first[made] = held;
        if (i > 0)
            it->place[cycle[i]] = NONE;
    }
    it->node[source] = made;
    it->length -= length - 1;
}

static void contract_all(struct contraction *it)
{
    it->path[0] = it->place[0] = 0;
    it->length = 1;
    while (true) {
        int64_t head = it->path[it->length - 1], source = cheapest_in(it, head), node = it->node[head];
        double cost = it->into[head * it->n + source];
        if (isinf(cost))
            return; /* the path is a single node, and no other is left */
        it->taken[node] = cost;
        it->hierarchy.entry[node] = it->edge[head * it->n + source];
        for (int64_t u = 0; u < it->n; u++)
            it->into[head * it->n + u] -= cost;
        if (it->place[source] != NONE) {
            close_cycle(it, source);
        } else {
            it->place[source] = it->length;
            it->path[it->length++] = source;
        }
    }
}

/* Set each root's total: the sum of `taken` over all nodes but those that hold the root (the dual of Edmonds' program). */
static void add_up(const struct contraction *it, double *totals)
{
    double sum = 0.0;
    for (int64_t node = 0; node < it->nodes; node++)
        sum += it->taken[node];
    it->taken[it->nodes - 1] = 0.0;
    for (int64_t node = it->nodes - 2; node >= 0; node--) /* a node comes after the nodes that it holds */
        it->taken[node] += it->taken[it->hierarchy.owner[node]];
    for (int64_t node = 0; node < it->n; node++)
        totals[node] = sum - it->taken[node];
}

/* Contract the graph whose edges u -> v cost `costs[u * n + v]`, all finite. Fills a hierarchy of 8 * n numbers, and the cost
 * of each root's tree. Returns false if out of memory. */
bool contract(int64_t n, const double *costs, int64_t *memory, double *totals)
{
    struct contraction it = {
        .n = n,
        .nodes = n,
        .into = malloc(n * n * sizeof(double)),
        .edge = malloc(n * n * sizeof(int64_t)),
        .node = malloc(n * sizeof(int64_t)),
        .path = malloc(n * sizeof(int64_t)),
        .place = malloc(n * sizeof(int64_t)),
        .taken = calloc(2 * n, sizeof(double)),
        .best = malloc(n * sizeof(double)),
        .best_edge = malloc(n * sizeof(int64_t)),
        .hierarchy = hierarchy_of(n, memory),
    };
    bool done = it.into && it.edge && it.node && it.path && it.place && it.taken && it.best && it.best_edge;
    if (done) {
        for (int64_t v = 0; v < n; v++) {
            it.node[v] = v;
            it.place[v] = it.hierarchy.entry[v] = it.hierarchy.owner[v] = it.hierarchy.first[v] = NONE;
            for (int64_t u = 0; u < n; u++) {
                it.into[v * n + u] = u == v ? INFINITY : costs[u * n + v];
                it.edge[v * n + u] = u * n + v;
            }
        }
        contract_all(&it);
        add_up(&it, totals);
    }
    free(it.into), free(it.edge), free(it.node), free(it.path), free(it.place), free(it.taken), free(it.best);
    free(it.best_edge);
    return done;
}

/* Find each node's parent in the cheapest tree out of `root`, which is its own parent, from the hierarchy of `contract`. The
 * nodes that hold the root are expanded down to it; then each entered node is expanded down to the node that its edge enters.
 * All other nodes in those cycles keep their edges in. Returns false if out of memory. */
bool parents(int64_t n, int64_t *memory, int64_t root, int64_t *found)
{
    struct hierarchy hierarchy = hierarchy_of(n, memory);
    int64_t *open = malloc(2 * n * sizeof(int64_t)), waiting = 0, leaf = root, top = NONE;
    if (!open)
        return false;
    found[root] = root;
    while (true) {
        for (; leaf != top && hierarchy.owner[leaf] != NONE; leaf = hierarchy.owner[leaf])
            for (int64_t other = hierarchy.first[hierarchy.owner[leaf]]; other != NONE; other = hierarchy.next[other])
                if (other != leaf)
                    open[waiting++] = other;
        if (!waiting)
            break;
        top = open[--waiting];
        leaf = hierarchy.entry[top] % n;
        found[leaf] = hierarchy.entry[top] / n;
    }
    free(open);
    return true;
}
