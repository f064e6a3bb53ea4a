"""The rendezvous of a process group's ranks at a controller: the environment names it, or rank 0 starts one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

from msgspec import structs
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from testbed.schema import MOST_ROUND_TIMEOUT_S
from testbed.sockets import Tls
from testbed.sync.control_channel import ControlChannel
from testbed.sync.environment import CONTROLLER, MemberEnvironment, address_towards, member_of
from testbed.sync.errors import SyncError
from testbed.sync.rendezvous import Rendezvous, rendezvous, telling_failure
from testbed.sync.session import Session, session_of
from testbed.sync.transport.sockets import first_address

#: The address of a machine that is alone.
LOOPBACK = "127.0.0.1"

#: The key in the store under which rank 0 publishes the controller that it has started.
KEY = "controller"

log = logging.getLogger(__name__)


class GroupRendezvous:
    """Joins one rank to the other ranks of its group.

    The environment's controller serves the first group of all ranks; the sums of smaller and later groups then go over
    gloo. If the environment names no controller, rank 0 of each group starts one beside it.

    Args:
        store: The group's store.
        rank: This process's rank in the group.
        size: The number of ranks in the group.
        among_all: True if the group has all ranks.
        controller: The command that starts a controller.
        ranks: The global rank of each of the group's ranks, for errors; by default their ranks in the group.

    Attributes:
        planned: True if the group's large sums use a session.
    """

    #: The members of this process that joined at the environment's controller, which takes each once.
    _served: ClassVar[set[tuple[str, str]]] = set()

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        among_all: bool,
        controller: Sequence[str],
        ranks: Sequence[int] = (),
    ) -> None:
        self._store = PrefixStore("wan/", store)
        self._rank = rank
        self._size = size
        self._controller = controller
        self._environment = member_of(os.environ) if os.environ.get(CONTROLLER) else None
        self._own: OwnController | None = None
        self._given_up = threading.Event()
        self._waits_at: ControlChannel | None = None
        self._names = [f"rank{number}" for number in ranks or range(size)]
        its = self._environment
        self.planned = its is None or (among_all and (its.control, its.name) not in self._served)
        if not self.planned and size > 1:
            why = "the controller's plans are for the first group of all ranks"
            log.warning("wan: a group of %d ranks uses gloo: %s", size, why)

    def join(self, timeout_s: float, on_failure: Callable[[SyncError], None]) -> Session:
        """Join the other ranks, and return this rank's session.

        Args:
            timeout_s: The longest wait in seconds for the other ranks, and in each round.
            on_failure: Called, on any thread, with the error that ends all rounds.

        Raises:
            SyncError: A rank or the controller did not come in time, the controller has other members or lets them
                leave, or the wait was given up.
        """
        if self._environment is not None:
            self._served.add((self._environment.control, self._environment.name))
        try:
            member = self._environment or self._own_environment(timeout_s)
            tls = None if member.tls is None else Tls(member.tls)
            # Ranks may reach their first sum at very different times; gloo would wait for `timeout_s` as well.
            joined = rendezvous(
                member.control, member.name, member.listen, "cpu", timeout_s, member.token, tls, self._wait_at
            )
        except SyncError as error:
            if self._given_up.is_set():
                raise SyncError("the process group was aborted before all ranks had come", rule="aborted") from error
            raise
        finally:
            self._waits_at = None
        if wrong := self._misfit(joined):  # before there is a session, whose closing would be a failure as well
            with joined.accepting, closing(joined.channel), telling_failure(joined):
                raise wrong
        job = structs.replace(joined.job, round_timeout_s=timeout_s)
        session = session_of(replace(joined, welcome=structs.replace(joined.welcome, job=job)), on_failure=on_failure)
        log.info("wan: %s joined %d ranks at %s", member.name, self._size, member.control)
        return session

    def _misfit(self, joined: Rendezvous) -> SyncError | None:
        """Return why the controller's run is not one for this group, or None if it is."""
        if joined.welcome.lease_s:
            return SyncError(
                f"the controller at {joined.control} lets members leave, and the sums of a process group need all of "
                "its ranks; start it without --quorum, or reduce by a session of `testbed.sync.join`",
                rule="elastic",
            )
        if (count := len(joined.welcome.roster)) != self._size:
            return SyncError(
                f"the controller at {joined.control} has {count} members, and the process group {self._size} ranks; "
                "start it with a member for each rank",
                rule="size",
            )
        return None

    def give_up(self) -> None:
        """End the wait for the other ranks, in which another thread may be. Later waits end at once."""
        self._given_up.set()
        if (channel := self._waits_at) is not None:
            channel.close()

    def _wait_at(self, channel: ControlChannel) -> None:
        self._waits_at = channel
        if self._given_up.is_set():
            channel.close()

    def close(self) -> None:
        """End the controller that this rank has started, if any, after all members have left it."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _own_environment(self, timeout_s: float) -> MemberEnvironment:
        """Return the environment for the controller that rank 0 starts on its machine; rank 0 starts it.

        Rank 0 listens at its address towards the host of the group's store, or at its first address if the store has no
        host, as one in a file.
        """
        if self._rank == 0:
            try:
                host = address_towards(_host_of(self._store)) or first_address() or LOOPBACK
                self._own = OwnController(self._controller, self._names, host, timeout_s)
                published = {"host": host, "address": self._own.address, "tokens": self._own.tokens}
            except SyncError as error:
                published = {"error": str(error)}
            except OSError as error:  # the other ranks wait for an answer
                published = {"error": f"rank 0 can't start the controller: {error}"}
            self._store.set(KEY, json.dumps(published))
        found = self._await_published(timeout_s)
        if "error" in found:
            raise SyncError(found["error"])
        name = self._names[self._rank]
        listen = address_towards(found["host"])
        return MemberEnvironment(found["address"], name, listen, found["tokens"][name])

    def _await_published(self, timeout_s: float) -> Any:
        """Wait for the controller that rank 0 publishes in the store, and return what it has published.

        Raises:
            SyncError: Nothing was published in time, the wait was given up, or the store failed.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while not self._store.check([KEY]):
                if self._given_up.wait(_POLL_S) or time.monotonic() >= deadline:
                    raise TimeoutError(f"the wait of up to {timeout_s:g} s is over")
            return json.loads(self._store.get(KEY))
        except (TimeoutError, RuntimeError) as error:  # the store's error: the process that keeps it has ended
            text = (
                "rank 0 named no controller: it starts one at its first large sum, and did not reach that sum in time, "
                "or has ended"
            )
            raise SyncError(f"{text} ({error})", rule="no-controller") from error


def _host_of(store: Store) -> str:
    """Return the host of the server that a store is, or that it is a part of; empty if there is no server."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""


#: The default size of a bucket of DistributedDataParallel; the first plan is made for sums of this size.
BUCKET_BYTES = 25 * 1024 * 1024

#: The longest wait in seconds for the controller's start: it imports planning, and may compile the simulator's inner
#: loop on a busy machine. The end of its process is noticed at once; this limit is for a controller that hangs.
START_S = 120.0
#: The longest wait in seconds for the controller's end. Members that have sent Goodbye leave within moments.
END_S = 10.0
_POLL_S = 0.05

REMEDY = (
    "set TESTBED_CONTROLLER to a controller's address, or install on rank 0's machine the programs that start one: "
    "pip install '.[sync,controller]', and a C compiler"
)


class OwnController:
    """The process of a controller that rank 0 started for its own group.

    It ends with rank 0's process, however that ends, once no child that the process forked holds its input any more,
    and deletes its own folder, which a killed rank could not do.

    Args:
        program: The command that starts a controller; the options are appended.
        members: The members' names.
        host: The address at which the controller listens, on a free port.
        timeout_s: The longest time in seconds that a round may take.

    Attributes:
        address: The controller's address, `tcp:host:port`.
        tokens: The members' tokens, by name.

    Raises:
        SyncError: The controller did not start.
    """

    def __init__(self, program: Sequence[str], members: Sequence[str], host: str, timeout_s: float) -> None:
        listening = socket.create_server((host, 0))  # passed on: another program could take the port of a closed socket
        self._folder = folder = Path(mkdtemp(prefix="testbed-wan-"))  # a forked child's end must not remove it
        where = f"{host}:{listening.getsockname()[1]}"
        self.address = f"tcp:{where}"
        words = ["--members", ",".join(members), "--listen", where, "--listening", str(listening.fileno())]
        words += ["--no-tls", "--secrets", str(folder / "secrets")]
        words += ["--model-bytes", str(BUCKET_BYTES), "--policy", "auto"]
        words += ["--round-timeout", str(min(timeout_s, MOST_ROUND_TIMEOUT_S))]
        words += ["--out", str(folder / "out"), "--attached", str(folder)]
        self._log = (folder / "controller.log").open("w+b")
        try:
            with listening:
                self._process = subprocess.Popen(
                    [*program, *words],
                    stdin=subprocess.PIPE,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    env=_plain_environment(),
                    pass_fds=[listening.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            self._log.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        try:
            self._await_start(folder / "out" / "admin.sock")
            self.tokens = {name: (folder / "secrets" / f"{name}.token").read_text().strip() for name in members}
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def close(self) -> None:
        """End the controller, after its members have left or END_S have passed."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(b"\n")  # children that this process forked may hold the input open
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            # SIGTERM would make the controller stop members in their last sum, which they can end without it.
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await_start(self, ready: Path) -> None:
        """Wait for the file that the controller makes when it is ready.

        Members may connect before: the socket listens, and queues their connections until the controller accepts them.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._log.seek(0)
                last_line = self._log.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise SyncError(f"rank 0 could not start a controller: {last_line}. Correct that, or {REMEDY}")
            if ready.exists():
                return
            time.sleep(_POLL_S)
        raise SyncError(f"the controller that rank 0 started did not answer within {START_S:g} s: {REMEDY}")


def _plain_environment() -> dict[str, str]:
    """Return this process's environment without this rank's variables: the controller is not part of the group."""
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "TESTBED_BACKEND")}
