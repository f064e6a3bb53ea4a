"""docs/machines.md over two machines, which are namespaces: `testbed-controller`, and an unchanged DDP script.

One of the script's two processes is started by its command line, so that PyTorch itself calls what is installed, and
the interpreter's end is one; the other, and the controller, are forks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.emulation.containers.program_image import _metadata
from testbed.emulation.network.namespace import Namespace
from testbed.emulation.process import ProcessIdentity
from tests.program import ForkedProgram, preload
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.system

preload("testbed.controller.serve", "testbed.sync", "torch._dynamo", "testbed.schemes.unchanged")

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "ddp.py"
STEPS = 64
#: What a scheme with a round each 32 steps may send of what DDP does.
SHARE = 1 / 20


@dataclass
class Machine:
    """A namespace with an interface, `wan`, to the other one."""

    name: str
    address: str
    namespace: Namespace

    def run(self, command: str) -> None:
        subprocess.run(["nsenter", f"--net={self.namespace.path}", *command.split()], check=True)

    def spawn(self, stack: ExitStack, *words: str, **variables: str) -> subprocess.Popen[str]:
        entering = ("nsenter", f"--net={self.namespace.path}", sys.executable, *words)
        environment = {**os.environ, **variables}
        program = subprocess.Popen(entering, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stack.enter_context(program)
        stack.callback(program.kill)
        return program

    def start(self, stack: ExitStack, *words: str, **variables: str) -> ForkedProgram:
        holder = ProcessIdentity.of(self.namespace.pid)
        assert holder is not None
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            place = (str(holder.pid), str(holder.start_ticks))
            return stack.enter_context(ForkedProgram("-m", "tests.namespaced", *place, *words))

    def received_bytes(self) -> int:
        lines = Path(f"/proc/{self.namespace.pid}/net/dev").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.lstrip().startswith("wan:"))


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with ExitStack() as stack:
        spaces = [stack.enter_context(closing(Namespace())) for _ in range(2)]
        one, other = (Machine(f"w{i}", f"10.77.0.{i + 1}", space) for i, space in enumerate(spaces))
        one.run(f"ip link add wan type veth peer name wan netns {other.namespace.pid}")
        for machine in (one, other):
            machine.run(f"ip address add {machine.address}/24 dev wan")
            machine.run("ip link set wan up")
            machine.run("ip link set lo up")
        yield one, other


def installed(folder: Path) -> str:
    """Write this package's entry points, as containers have them, into a folder, and return a PYTHONPATH with it."""
    for name, text in _metadata().items():
        file = folder / Path(name).relative_to("metadata")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return f"{folder}:{ROOT}"


def controlled(stack: ExitStack, folder: Path, machine: Machine) -> tuple[ForkedProgram, dict[str, str]]:
    """Start a controller on the machine. Returns its process, and the variables with which scripts train under it."""
    words = ["--members", "w0,w1", "--listen", "0.0.0.0:7000", "--model-bytes", "500000"]
    folders = ["--secrets", str(folder / "secrets"), "--out", str(folder / "run")]
    served = machine.start(stack, "-m", "testbed.controller.standalone", *words, *folders)
    until((folder / "run" / "admin.sock").exists)
    return served, {
        "PYTHONPATH": installed(folder),
        "TESTBED_SCHEME": "diloco:every=32",
        "TESTBED_CONTROLLER": f"tcp:{machine.address}:7000",
        "TESTBED_MEMBER": "w{RANK}",
        "TESTBED_TLS": f"{folder}/secrets/tls/w{{RANK}}",
    }


def train(machines: tuple[Machine, Machine], **variables: str) -> tuple[int, str, str]:
    """Both machines run the script; the bytes between them, what rank 0 printed, and what both said of the scheme."""
    before = sum(machine.received_bytes() for machine in machines)
    torchrun = {"WORLD_SIZE": "2", "MASTER_ADDR": machines[0].address, "MASTER_PORT": "29500"}
    variables |= torchrun | {"GLOO_SOCKET_IFNAME": "wan"}
    words = (str(SCRIPT), "--steps", str(STEPS))
    with ExitStack() as stack:
        begin = machines[1].spawn if "PYTHONPATH" in variables else machines[1].start
        programs = [
            machines[0].start(stack, *words, RANK="0", **variables),
            begin(stack, *words, RANK="1", **variables),
        ]
        outputs = [program.communicate(timeout=PATIENCE_S) for program in programs]
        assert [program.wait() for program in programs] == [0, 0], outputs
    said = "".join(errors for _, errors in outputs)
    return sum(machine.received_bytes() for machine in machines) - before, outputs[0][0], said


def last_loss(printed: str) -> float:
    return float(re.findall(r"loss=(\S+)", printed)[-1])


def test_one_controller_serves_one_training_after_the_other(tmp_path: Path, machines: tuple[Machine, Machine]) -> None:
    with ExitStack() as stack:
        served, environment = controlled(stack, tmp_path, machines[0])
        losses = [last_loss(train(machines, **environment)[1]) for _ in range(2)]
        until((tmp_path / "run" / "2" / "final.json").exists)
        served.terminate()
        assert served.wait(PATIENCE_S) == 0
        told = served.communicate()[1]
    assert max(losses) < 1.0
    for out in (tmp_path / "run", tmp_path / "run" / "2"):
        final = json.loads((out / "final.json").read_text())
        assert (final["state"], set(final["members"])) == ("done", {"w0", "w1"})
        assert f"the training in {out} is done" in told


def test_a_script_trains_by_a_scheme_over_tls_with_a_twentieth_of_ddp_s_bytes(
    tmp_path: Path, machines: tuple[Machine, Machine]
) -> None:
    ddp_bytes, printed, said = train(machines)
    assert "TESTBED_SCHEME" not in said
    ddp_loss = last_loss(printed)

    with ExitStack() as stack:
        served, environment = controlled(stack, tmp_path, machines[0])
        scheme_bytes, printed, said = train(machines, **environment)
        served.terminate()
        assert served.wait(PATIENCE_S) == 0
        told = served.communicate()[1]
    reports = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    round_bytes = sum(report["sent_bytes"] for report in reports)
    # Beside rounds the controller has paths probed, the more the faster they are, and nothing slows this one.
    beside = f"{scheme_bytes:,} bytes, of which rounds {round_bytes:,}, loss {last_loss(printed)}"
    print(f"DDP {ddp_bytes:,} bytes, loss {ddp_loss:.4f}; diloco {beside}")
    assert 0 < round_bytes <= SHARE * ddp_bytes
    assert last_loss(printed) < 1.0, "it has not learned"
    assert said.count("exchanges no gradients") == 2 and said.count("by diloco (every=32, fragments=1") == 2
    assert said.count("64 steps, 2 rounds") == 2
    assert "all connections are encrypted" in told and f"{tmp_path}/secrets/tls/w1   to the machine of w1" in told
    assert (tmp_path / "secrets/tls/w1/key.pem").stat().st_mode & 0o077 == 0
    assert not [*(tmp_path / "secrets").glob("*.token")]
