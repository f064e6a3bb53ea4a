"""Plans of every shape for tests: random trees, and the schemes by name."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

from testbed.plan import Group, Plan, Route, Tree


def names(count: int) -> tuple[str, ...]:
    return tuple(f"m{i}" for i in range(count))


def star(members: tuple[str, ...], root: str) -> Tree:
    parents = {member: root for member in members if member != root}
    return Tree(root, parents, dict(parents))


def chain(members: tuple[str, ...]) -> Tree:
    parents = dict(zip(members[1:], members, strict=False))
    return Tree(members[0], parents, dict(parents))


def random_tree(draw: random.Random, members: tuple[str, ...], share: float = 1.0) -> Tree:
    """Return a tree with different random parents for reduce and broadcast."""
    order = draw.sample(members, len(members))
    up = {member: draw.choice(order[:i]) for i, member in enumerate(order) if i}
    rest = draw.sample(order[1:], len(order) - 1)
    down = {member: draw.choice([order[0], *rest[:i]]) for i, member in enumerate(rest)}
    return Tree(order[0], up, down, share)


def random_plan(draw: random.Random, members: tuple[str, ...], epoch: int, chunk_bytes: int = 4096) -> Plan:
    """Return a plan of one to five trees with unequal shares, every other one with keys."""
    return Plan(epoch, members, random_trees(draw, members), chunk_bytes)


def random_trees(draw: random.Random, members: tuple[str, ...]) -> tuple[Tree, ...]:
    trees = [random_tree(draw, members, share) for share in random_shares(draw, 5)]
    return tuple(replace(tree, keys=random_shares(draw, 4)) if i % 2 else tree for i, tree in enumerate(trees))


def random_shares(draw: random.Random, most: int) -> tuple[float, ...]:
    weights = [draw.uniform(0.05, 1) for _ in range(draw.randint(1, most))]
    return tuple(weight / sum(weights) for weight in weights)


def random_groups(draw: random.Random, plan: Plan) -> Plan:
    """Return the plan with its members in one to three groups."""
    order = draw.sample(plan.members, len(plan.members))
    cuts = [0, *sorted(draw.sample(range(1, len(order)), draw.randint(0, min(2, len(order) - 1)))), len(order)]
    parts = [tuple(order[start:stop]) for start, stop in pairwise(cuts)]
    groups = tuple(Group(part, random_trees(draw, part)) for part in parts)
    return replace(plan, groups=groups, period=draw.randint(2, 4))


def random_routes(draw: random.Random, members: tuple[str, ...]) -> tuple[Route, ...]:
    """Return a route over one or two others for every third pair of members."""
    if len(members) < 3:
        return ()
    pairs = [(a, b) for a in members for b in members if a != b]
    routes = []
    for source, target in draw.sample(pairs, len(pairs) // 3):
        others = [member for member in members if member not in (source, target)]
        routes.append(Route(source, target, tuple(draw.sample(others, min(len(others), draw.randint(1, 2))))))
    return tuple(routes)


def two_level(groups: list[tuple[str, ...]]) -> Tree:
    """Return the tree in which members send to their group's first member, and these to the first group's."""
    root = groups[0][0]
    parents = {member: group[0] for group in groups for member in group[1:]}
    parents |= {group[0]: root for group in groups[1:]}
    return Tree(root, parents, dict(parents))


def random_graph(draw: random.Random, members: tuple[str, ...]) -> dict[str, set[str]]:
    """Return each member's neighbours in a connected graph: a random tree, and up to as many pairs more."""
    graph: dict[str, set[str]] = {member: set() for member in members}
    order = draw.sample(members, len(members))
    pairs = [(member, draw.choice(order[:i])) for i, member in enumerate(order) if i]
    pairs += [tuple(draw.sample(order, 2)) for _ in range(draw.randint(0, len(pairs)))]
    for one, other in pairs:
        graph[one].add(other)
        graph[other].add(one)
    return graph


def spanning(draw: random.Random, graph: dict[str, set[str]], root: str) -> dict[str, str]:
    """Return each member's parent in a random tree over the graph's edges."""
    parents: dict[str, str] = {}
    while len(parents) < len(graph) - 1:
        reached = [root, *parents]
        leaving = sorted((member, new) for member in reached for new in graph[member] - set(reached))
        parent, child = draw.choice(leaving)
        parents[child] = parent
    return parents


def plan_over_graph(draw: random.Random, members: tuple[str, ...], epoch: int) -> Plan:
    """Return a plan of one to four trees over a random connected graph; reduce and broadcast are drawn separately."""
    graph = random_graph(draw, members)
    trees = []
    for share in random_shares(draw, 4):
        root = draw.choice(members)
        trees.append(Tree(root, spanning(draw, graph, root), spanning(draw, graph, root), share))
    return Plan(epoch, members, tuple(trees), draw.choice([1024, 2048, 8192]))
