"""The project's policies, one file each. Importing a policy's module registers it: a new policy is one line here."""

from testbed.planning.policies import (  # noqa: F401
    auto,
    blueconnect,
    cpn,
    given,
    hierarchical,
    hips,
    mlnet,
    mst,
    netstorm,
    packing,
    ring,
    star,
    tsengine,
)
