"""What HALoS' workers and servers send each other."""

from __future__ import annotations

from torch import Tensor

from testbed.sync.gossip.message import CodedElements, Message, message


@message(32)
class WorkerPush(Message):
    """What the sender's local steps changed, as x - x after them, for the server of its site."""

    iteration: int
    change: Tensor


@message(33)
class SiteModel(Message):
    """The site's model after the push of this iteration."""

    iteration: int
    parameters: Tensor


@message(34)
class SitePush(Message):
    """What the sender's site has changed since it last took in the model of all, for the server of all."""

    number: int
    change: CodedElements


@message(35)
class GlobalModel(Message):
    """The model of all after the site's push of this number."""

    number: int
    parameters: CodedElements


@message(36)
class Came(Message):
    """The sender comes while others train, in this iteration, and asks for the model: of its site, or of all."""

    iteration: int
