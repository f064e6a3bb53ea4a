"""Plans of every shape for tests: random trees, and the schemes by name."""

from __future__ import annotations

import random

from testbed.plan import Plan, Tree


def names(count: int) -> tuple[str, ...]:
    return tuple(f"m{i}" for i in range(count))


def star(members: tuple[str, ...], root: str) -> Tree:
    parents = {member: root for member in members if member != root}
    return Tree(root, parents, dict(parents))


def chain(members: tuple[str, ...]) -> Tree:
    parents = dict(zip(members[1:], members, strict=False))
    return Tree(members[0], parents, dict(parents))


def random_tree(draw: random.Random, members: tuple[str, ...], share: float = 1.0) -> Tree:
    """Different random trees for the way up and the way down."""
    order = draw.sample(members, len(members))
    up = {member: draw.choice(order[:i]) for i, member in enumerate(order) if i}
    rest = draw.sample(order[1:], len(order) - 1)
    down = {member: draw.choice([order[0], *rest[:i]]) for i, member in enumerate(rest)}
    return Tree(order[0], up, down, share)


def random_plan(draw: random.Random, members: tuple[str, ...], epoch: int, chunk_bytes: int = 4096) -> Plan:
    """One to five trees of unequal shares."""
    weights = [draw.uniform(0.05, 1) for _ in range(draw.randint(1, 5))]
    trees = tuple(random_tree(draw, members, weight / sum(weights)) for weight in weights)
    return Plan(epoch, members, trees, chunk_bytes)


def two_level(groups: list[tuple[str, ...]]) -> Tree:
    """Members to their group's first, those to the first group's."""
    root = groups[0][0]
    parents = {member: group[0] for group in groups for member in group[1:]}
    parents |= {group[0]: root for group in groups[1:]}
    return Tree(root, parents, dict(parents))
