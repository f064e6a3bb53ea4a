"""One member's part in decentralized training: its connections, its participant, and its reports to the controller."""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import torch
from msgspec.structs import asdict
from torch import Tensor

from testbed.protocol import (
    AbortGraph,
    CommitGraph,
    ControlMessage,
    Died,
    Goodbye,
    Hello,
    Job,
    NodeConfiguration,
    PrepareGraph,
    Welcome,
    checked_metrics,
)
from testbed.schema import check_name
from testbed.sockets import Tls, host_and_port, is_host
from testbed.sync import flat
from testbed.sync.codecs import PLAIN, Codec, by_name
from testbed.sync.control_channel import ControlChannel
from testbed.sync.control_connection import ControlledMember
from testbed.sync.errors import SyncError
from testbed.sync.gossip.driver import Driver, LocalStep
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.inbox import GraphCommitted, GraphPrepared, MemberFailed
from testbed.sync.gossip.iteration_reporter import IterationReporter, StepFigures
from testbed.sync.gossip.mailbox import Mailbox
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.gossip.neighbours import Neighbours
from testbed.sync.rendezvous import Rendezvous, rendezvous, telling_failure
from testbed.sync.transport import Listener
from testbed.sync.transport.sockets import EVERY_INTERFACE, check_congestion


class Membership(ControlledMember):
    """One member of decentralized training, made by `join`. A context manager; leaving it ends the member's part.

    Attributes:
        name: The member's name.
        job: The run's settings.
    """

    def __init__(
        self,
        met: Rendezvous,
        participant: Participant,
        figures: Callable[[], StepFigures] = StepFigures,
        codec: Codec = PLAIN,
        survives: bool = False,
    ) -> None:
        """Accept connections from peers, and handle the controller's messages.

        Args:
            met: The result of the rendezvous. Its job's assignment is a NodeConfiguration.
            participant: The participant.
            figures: Returns the figures of the local steps since the last call.
            codec: The codec of the tensors that messages declare as CodedElements.
            survives: Go on without a lost member once the controller says so, instead of failing.

        Raises:
            ValueError: The assignment is malformed, or the codec can't count the model's parameters.
            SyncError: The kernel lacks the job's congestion control, or no other thread can be started.
        """
        if met.job.congestion:
            check_congestion(met.job.congestion)  # else each attempt to connect would fail until the timeout
        super().__init__(met.name, met.connection())
        self.job = met.job
        roster, node = met.welcome.roster, met.node
        settings = met.settings(generation=node.first)
        messages = MessageCodec(tuple(roster), len(participant.model), codec)
        self._participant = participant
        self._partners = node.partners
        self._survives = survives
        self._mailbox = Mailbox(settings, messages, roster, participant.stale)
        self._reporter = IterationReporter(
            self.name, node.first, self._mailbox, lambda: _with_metrics(figures(), participant), self._connection.tell
        )
        self._driver: Driver | None = None
        self._listener = Listener(met.accepting, settings, self._mailbox.inbox)
        try:
            self._start()
        except BaseException:
            self._close()
            raise

    @property
    def rounds(self) -> int:
        """The number of the iteration that the member has entered last."""
        return self._driver.iteration if self._driver else 0

    def train(self, step: LocalStep) -> Tensor:
        """Run the participant's program to its end, once.

        Args:
            step: Makes a local step: it is called, on a thread of its own, with flat parameters, which it must not
                change, and the number of the step; it returns the change to the parameters, of the same shape.

        Returns:
            The participant's parameters at the end, flat, float32, on the host.

        Raises:
            SyncError: A peer is lost, or did not send an awaited message in time.
            Stopped: The controller told this member to leave.
            Exception: Whatever `step` raises.
        """
        self._driver = Driver(
            self._participant,
            self._partners,
            self._mailbox,
            step,
            self._reporter,
            self.job.round_timeout_s,
            survives=self._survives,
        )
        self._driver.run()
        return self._participant.model

    def train_model(self, parameters: Sequence[Tensor], step: Callable[[int], object]) -> None:
        """Train a model in place, as `train` does; at the end it has the participant's parameters.

        Args:
            parameters: The model's parameters, with as many elements as the participant's.
            step: Makes the local step with the given number: it moves the parameters from their present values, as
                `optimizer.step()` does. Called on a thread of its own, with the caller's default device and the
                parameters' CUDA device; `torch.autocast` belongs inside it.
        """
        default = torch.get_default_device()

        def local_step(given: Tensor, number: int) -> Tensor:
            flat.scatter(given, parameters)
            with ExitStack() as devices:
                if parameters[0].is_cuda:
                    devices.enter_context(torch.cuda.device(parameters[0].device))
                if default.type != "cpu":  # as a context it slows every operation down
                    devices.enter_context(default)
                step(number)
            return flat.gather(parameters).cpu().sub_(given)

        flat.scatter(self.train(local_step), parameters)

    def finish(self, digest: str = "", metrics: Mapping[str, float] | None = None) -> None:
        """Leave the run, after the peers have read all that was sent to them.

        Leaving the context without an error calls `finish` too.

        Args:
            digest: The SHA-256 of the parameters, if the controller is to compare it among members.
            metrics: Final figures to keep, up to 64.
        """
        self._mailbox.outbox.drain(self.job.round_timeout_s)
        self._goodbye(Goodbye(self.name, self.job.rounds, digest, checked_metrics(metrics or {})))

    def _handle(self, message: ControlMessage) -> None:
        inbox = self._mailbox.inbox
        match message:
            case Died(gone):
                inbox.cut(gone)
            case PrepareGraph(ahead):
                inbox.put(GraphPrepared(ahead))
            case CommitGraph(iteration, node, roster):
                neighbours = Neighbours(self.name, node.sources, node.targets, node.weights)
                inbox.commit(GraphCommitted(iteration, neighbours, roster))
            case AbortGraph():
                inbox.put(GraphCommitted(0, None))

    def _fail(self, error: SyncError) -> None:
        self._mailbox.inbox.put(MemberFailed(error))

    def _close(self) -> None:
        self._mailbox.outbox.close()
        self._mailbox.inbox.close()
        self._listener.close()


def join(
    program: Participant | Callable[[Rendezvous], Participant],
    name: str,
    *,
    peers: Mapping[str, str] | None = None,
    partners: Collection[str] | None = None,
    control: str = "",
    listen: str = "",
    device: str = "cpu",
    timeout: float = 120.0,
    token: str = "",
    tls: str | Path | None = None,
    survives: bool = False,
) -> Membership:
    """Become a member of decentralized training: among `peers` alone, or in the run of a controller.

        with gossip.join(participant, "paris", peers=peers, token=token) as membership:
            membership.train_model([*model.parameters()], step)

    Among peers alone this function does not wait: a peer must come within `timeout` of the first message to it. The
    members are fixed, and the loss of one ends training at the others.

    Args:
        program: The member's participant; or a function that makes it, given the addresses of all members and, from a
            controller, the job with this member's node configuration.
        name: This member's name.
        peers: Each member's address, `host:port`, by name, this member's too; the same at all members.
        partners: Among peers alone, the members that this one sends to or receives from; None: all others. This
            member stays until its partners are done.
        control: The controller's address, `unix:/path` or `tcp:host:port`, in place of `peers`.
        listen: The IPv4 address to accept connections at. Empty: the one in `peers`, or with a controller the first
            address of an interface other than the loopback.
        device: The device that the member trains on, for the controller's records.
        timeout: The longest wait in seconds for a peer's message, or with a controller for the controller and for the
            other members, each.
        token: Among peers alone, a secret that all members have, by which they prove that they are members; over TCP
            to a controller, the secret by which it accepts this member.
        tls: The folder with this member's certificate, with which all connections are encrypted.
        survives: Go on without a lost member once the controller says so, instead of failing.

    Raises:
        ValueError: The arguments contradict each other, or the program does not fit its node configuration.
        SyncError: The address is taken, the controller or a member did not appear in time, or the controller refused.
        TlsError: The folder's certificate can't be used.
    """
    secured = None if tls is None else Tls(Path(tls))
    if bool(control) == (peers is not None):
        raise ValueError("write either peers=, the addresses of all members, or control=, the controller's address")
    if peers is None:
        met = rendezvous(control, name, listen, device, timeout, token, secured)
    else:
        met = _among_peers(name, peers, partners, listen, timeout, token, secured)
    with ExitStack() as on_failure:
        on_failure.enter_context(met.accepting)
        on_failure.enter_context(closing(met.channel))
        with telling_failure(met):
            participant = program if isinstance(program, Participant) else program(met)
            codec = by_name(met.node.rules.get("codec", PLAIN.name))
            membership = Membership(met, participant, codec=codec, survives=survives and peers is None)
        on_failure.pop_all()
    return membership


class _NoController(ControlChannel):
    """A channel to no controller, for a run without one. It drops messages; a Goodbye closes it."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def send(self, message: ControlMessage) -> None:
        if isinstance(message, Goodbye):
            self.close()

    def receive(self) -> None:
        self._closed.wait()

    def close(self) -> None:
        self._closed.set()


def _among_peers(
    name: str,
    peers: Mapping[str, str],
    partners: Collection[str] | None,
    listen: str,
    timeout_s: float,
    token: str,
    tls: Tls | None,
) -> Rendezvous:
    """Return the rendezvous that a controller would have led to."""
    if not token and tls is None:
        raise ValueError("write token=, a secret that all members have, or tls=, the folder of a certificate")
    roster = {peer: _endpoint(peer, peers[peer]) for peer in sorted(peers)}  # messages number members in this order
    if name not in roster:
        raise ValueError(f"peers are {', '.join(roster)}: add the address of {name}, this member")
    others = [peer for peer in roster if peer != name]
    if strangers := sorted(set(partners or ()) - set(others)):
        raise ValueError(f"partners {', '.join(strangers)} are not among the other members, {', '.join(others)}")
    node = NodeConfiguration("", (), (), {}, tuple(others if partners is None else partners), {})
    job = Job(0, assignment=asdict(node), round_timeout_s=timeout_s)
    host, port = roster[name]
    if not is_host(listen):
        raise SyncError(
            f"can't listen on {listen!r}: write an IPv4 address of this machine", rule="address", given=listen
        )
    try:
        accepting = socket.create_server((listen or host, port), backlog=128)
    except OSError as error:
        raise SyncError(
            f"can't listen on {listen or host}:{port}: {error}", rule="address", given=peers[name]
        ) from error
    keys = {peer: _key(token, name, peer) for peer in others}
    return Rendezvous("", accepting, _NoController(), Hello(name, (host, port)), Welcome(job, roster, {}), keys, tls)


def _endpoint(peer: str, address: str) -> tuple[str, int]:
    """Return a peer's host and port. Raises ValueError where its name or its address is wrong."""
    check_name(peer)
    if (found := host_and_port(address)) is None:
        raise ValueError(f"peers: {peer}={address!r} is malformed: write host:port")
    if found[0] == EVERY_INTERFACE:
        raise ValueError(f"peers: {peer}={address!r}: write the address at which the other members reach {peer}")
    return found


def _key(secret: str, *members: str) -> bytes:
    """Derive the key that two members share from the secret of all."""
    return hmac.digest(secret.encode(), json.dumps(sorted(members)).encode(), "sha256")


def _with_metrics(figures: StepFigures, participant: Participant) -> StepFigures:
    return replace(figures, metrics={**figures.metrics, **participant.metrics})
