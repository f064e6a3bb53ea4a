"""The project's policies. Importing a policy's module registers it: a new policy is a file, and one line here."""

from testbed.planning.policies import (  # noqa: F401
    auto,
    cpn,
    given,
    hierarchical,
    mlnet,
    mst,
    netstorm,
    packing,
    ring,
    star,
    tsengine,
)
