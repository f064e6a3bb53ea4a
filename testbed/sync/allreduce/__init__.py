"""All-reduce over plans: members add up tensors along a plan's trees, and send the means back down.

How a plan comes into force
---------------------------

All members must use one plan in each round; otherwise a chunk would wait for partial sums that no member sends. Four
protocols ensure that, each for a case that the others can't serve:

1. Agreement in a round among all members. Each chunk's header carries the epoch that its contributors are ready to use
   next; if they differ, it is the current epoch. The mean brings the result back, so every member knows it when the
   round ends. No extra message, no pause, and a controller that dies leaves no member undecided.
   Code: `ChunkHeader.successor`, `Part.joined`, `Reduction`, `HeldPlans.agree`; see also testbed/protocol.py.
2. Early commit. Different groups reduce together only in rounds among all, which may be many rounds apart. The root of
   the new plan has every member promise to begin no further round, and commits the plan from the round after the newest
   one.
   Code: early_swaps.py, with the proof.
3. Change of membership. A plan with a new member begins another generation; the members of the current generation
   agree on its epoch as in 1 (`Generations.advance`). After a loss no round can end, so no round can agree: the
   controller aborts the round, collects what each survivor holds, and its Reconfigure is in force at once.
   Code: elastic.py, generations.py, recovery.py.
4. Change of the gossip graph. Gossip has no rounds: members are in different iterations. The controller asks all
   members for the first iteration that they have not promised to enter, and commits the graph from the largest one.
   Code: `Participant.promise` and `commit` in testbed/sync/gossip, testbed/controller/gossip.

Why not fewer: 2 would also serve where 1 does, but it holds up members for a round trip or two, and members that have
promised depend on the root. 3 can't wait for a member that is dead. 2 and 4 share an idea (each member promises its
progress, and the commit begins beyond the furthest member), but no code: in 2 members talk to each other so that
training survives the controller, in 4 the controller talks to members, which answer by their scheme's own rules. The
only common code would be one `max`.
"""

from __future__ import annotations

from testbed.sync.allreduce.chunk_codec import CODES as ELEMENT_TYPES
from testbed.sync.allreduce.elastic import ElasticGroup
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.allreduce.round import RoundResult

#: The all-reduce of a session: one group of fixed members, or one group for each generation of members.
AllReduceEngine = AllReduceGroup | ElasticGroup

__all__ = ["ELEMENT_TYPES", "AllReduceEngine", "AllReduceGroup", "ElasticGroup", "RoundResult"]
