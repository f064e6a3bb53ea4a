"""The direction of imports between rooms, read from the source: what breaks it is moved, not excused."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import testbed

pytestmark = pytest.mark.pure

PACKAGE = Path(testbed.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

#: Room → the rooms it may import, beside itself. A room that is not here has no place yet, which is an error too.
ARROWS: dict[str, set[str]] = {
    "atomic_file": set(),
    "lazy": set(),
    "sudo": set(),
    "resources": set(),
    "compiler": {"resources", "errors"},
    "link": {"errors"},
    "errors": {"resources", "lazy", "sudo"},
    "plan": {"errors"},
    "schema": {"errors"},
    "sockets": set(),
    "certificates": {"errors", "sockets", "schema", "atomic_file"},
    "protocol": {"schema"},
    "workload": set(),
    "starts": {"errors", "atomic_file", "planning"},
    "scheme_autoload": {"schemes"},
    "schemes": {"planning", "sync", "plan", "protocol", "schema", "lazy"},
    "trace": {"errors", "link", "atomic_file"},
    "spec": {"errors", "schemes", "trace", "plan", "link", "atomic_file", "resources"},
    "planning": {"errors", "compiler", "plan", "link"},
    "plugins": {"planning", "trace", "lazy"},
    "telemetry": {"spec", "trace", "plan", "protocol", "link", "atomic_file"},
    "api": {"errors", "link", "atomic_file", "sockets", "sudo"},
    "emulation": {
        *("errors", "api", "compiler", "planning", "telemetry", "spec", "trace", "plan", "protocol", "link"),
        "resources",
    },
    "controller": {
        *(
            "api",
            "compiler",
            "errors",
            "planning",
            "plugins",
            "telemetry",
            "schemes",
            "spec",
            "trace",
            "plan",
            "protocol",
            "schema",
            "link",
            "sockets",
        ),
        *("atomic_file", "certificates"),
    },
    "sync": {"lazy", "errors", "plan", "protocol", "schema", "sockets", "atomic_file"},
    "torch_backend": {"sync"},
    "worker": {"schemes", "sync", "workload", "plan", "protocol", "schema", "sockets"},
    "launch": {"errors", "api", "schemes", "emulation", "telemetry", "link"},
    "run": {
        *("errors", "api", "launch", "controller", "emulation", "planning", "telemetry", "spec", "schemes", "trace"),
        *("compiler", "workload", "plan", "plugins", "protocol", "schema", "link", "atomic_file", "resources"),
        "sudo",
    },
    "simulation": {
        *("run", "controller", "emulation", "planning", "telemetry", "spec", "schemes", "trace", "sync", "worker"),
        *("workload", "plan", "protocol", "link"),
    },
    "scaleout": {
        *("run", "controller", "emulation", "telemetry", "spec", "link", "sockets", "certificates", "schema"),
        *("atomic_file", "lazy", "sudo", "resources", "trace"),
    },
    "report": {
        "errors",
        "api",
        "run",
        "planning",
        "telemetry",
        "spec",
        "trace",
        "plan",
        "protocol",
        "schema",
        "link",
        "atomic_file",
    },
    "result": {"run", "report"},
    "__init__": {"lazy", "resources", "result", "emulation", "spec"},
    "__main__": {"cli", "controller", "errors"},
    "cli": {
        *("errors", "atomic_file", "sudo"),
        *("run", "report", "controller", "emulation", "planning", "telemetry", "spec", "trace", "plan", "link"),
        *("api", "launch", "certificates", "compiler", "starts", "simulation", "scaleout", "plugins", "resources"),
    },
}

#: The layers within the controller: folder → the folders that it may import. Files beside the folders have the sockets,
#: timers and threads, and may import all.
LAYERS: dict[str, set[str]] = {
    "model": set(),
    "server": {"model"},
    "knowledge": {"model"},
    "replanning": {"model", "knowledge"},
    "allreduce": {"model", "knowledge", "replanning"},
    "gossip": {"model"},
}

#: Rooms that compute and nothing else, and what would let them reach outside.
PURE = ("link", "plan", "schema", "protocol", "workload", "planning")
OUTSIDE = {"socket", "subprocess", "pathlib", "os", "io", "shutil", "tempfile", "threading", "asyncio", "time"}
OPENERS = {"open", "input", "print", "exec", "eval", "__import__"}

#: The packages from outside that a worker over a real WAN needs, and who imports no others.
WORKERS = {"torch", "msgspec"}
OF_WORKERS = (
    *("schemes", "scheme_autoload", "sync", "torch_backend", "worker", "workload"),
    *("plan", "protocol", "schema", "errors", "sockets", "atomic_file", "resources", "lazy", "sudo"),
)


#: Modules of the room `schemes` that only programs that train import.
AROUND_A_LOOP = ("unchanged", "wrapped")


def room_of(module: Path) -> str:
    """Return a module's room: `testbed/spec/load.py` → `spec`; a module of the package itself is a room of its own."""
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def imports(module: Path) -> tuple[tuple[int, str], ...]:
    """Return (line, absolute dotted name) of each import of a module, wherever the statement stands.

    `from testbed import x` gives `testbed.x`, and a relative import the name it stands for.
    """
    return tuple(imports_in(module.read_text(encoding="utf-8"), module.relative_to(PACKAGE.parent)))


def imports_in(source: str, path: Path) -> Iterator[tuple[int, str]]:
    package = list(path.with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = [*base, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*start, alias.name])) for alias in node.names)


def wrong_arrows(room: str, found: Iterable[tuple[int, str]]) -> list[str]:
    """Return the imports of a room that it may not have."""
    wrong = []
    for line, name in found:
        top, _, rest = name.partition(".")
        if top != "testbed":
            continue
        target = rest.split(".")[0]
        if target == "*" or (target != room and target not in ARROWS[room]):
            wrong.append(f"line {line}: {room} → {target or 'testbed, whole'}")
    return wrong


def violations(broken: Callable[[Path], object], rooms: Collection[str] = tuple(ARROWS)) -> dict[str, object]:
    """Return the modules of these rooms for which `broken` returns anything, each with that."""
    found = {str(module.relative_to(PACKAGE)): broken(module) for module in MODULES if room_of(module) in rooms}
    return {module: what for module, what in found.items() if what}


def test_every_room_has_its_arrows_written_down() -> None:
    rooms = {room_of(module) for module in MODULES}
    assert rooms == set(ARROWS), "a room came or went: say in ARROWS what it may import"


def test_the_arrows_have_no_cycle() -> None:
    left = dict(ARROWS)
    while left:
        free = {room for room, targets in left.items() if not targets & left.keys()}
        assert free, f"a cycle among {sorted(left)}"
        left = {room: targets for room, targets in left.items() if room not in free}


def test_a_module_imports_only_what_its_room_may() -> None:
    assert violations(lambda module: wrong_arrows(room_of(module), imports(module))) == {}


@pytest.mark.parametrize(
    "source",
    [
        "from testbed import emulation",
        "from testbed import emulation as planning",
        "import testbed.emulation.network.network",
        "import testbed",
        "from testbed import *",
        "from testbed.emulation import network",
        "from .. import emulation",
        "from ..emulation import network",
        "def f():\n    from testbed.emulation.network.network import Network",
        "if TYPE_CHECKING:\n    from testbed.emulation.network.network import Network",
    ],
)
def test_no_way_of_writing_an_import_gets_past(source: str) -> None:
    assert wrong_arrows("planning", imports_in(source, Path("testbed/planning/view.py")))


def named_in_strings(module: Path) -> list[str]:
    """Return the rooms that a module's strings name and that it may not import, as by `import_module`."""
    strings = [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.Constant)]
    named = ((node.lineno, name) for node in strings for name in re.findall(r"testbed\.\w+", str(node.value)))
    return wrong_arrows(room_of(module), ((line, name) for line, name in named if name.partition(".")[2] in ARROWS))


def test_the_synchronization_library_names_no_room_above_it_in_a_string() -> None:
    assert violations(named_in_strings, ["sync"]) == {}


@pytest.mark.parametrize("name", ["testbed.schemes", "testbed.schemes.wrapped", "-m testbed.controller.standalone"])
def test_a_module_named_in_a_string_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "sync" / "rounds.py"
    module.parent.mkdir()
    module.write_text(f"import_module({name!r})")
    monkeypatch.setattr("tests.test_imports.PACKAGE", tmp_path)
    assert named_in_strings(module)


def test_an_import_within_the_room_is_no_arrow() -> None:
    source = "from . import cost\nfrom .cost import Cost\nfrom testbed.planning import view\nimport testbed.plan"
    assert not wrong_arrows("planning", imports_in(source, Path("testbed/planning/view.py")))


def tree_of(module: Path) -> ast.Module:
    """Return the module's syntax tree."""
    return ast.parse(module.read_text(encoding="utf-8"))


def reaches_outside(module: Path) -> set[str]:
    """Return a module's imports and calls that reach files, sockets, processes or clocks."""
    tree = tree_of(module)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return (called & OPENERS) | {name for _, name in imports(module) if name.partition(".")[0] in OUTSIDE}


def test_a_pure_module_reaches_nothing_outside() -> None:
    assert violations(reaches_outside, PURE) == {}


def test_a_controller_reads_time_by_its_clocks_alone() -> None:
    """Simulated time is an argument; only the service and its connections wait on the real event loop."""

    def barred(module: Path) -> list[str]:
        within = module.relative_to(PACKAGE / "controller")
        found = [name for _, name in imports(module) if name.partition(".")[0] == "time" and within.stem != "clocks"]
        if within.stem != "service" and within.parts[0] != "server":
            called = {ast.unparse(node.func) for node in ast.walk(tree_of(module)) if isinstance(node, ast.Call)}
            found += sorted(called & {"asyncio.sleep", "asyncio.timeout", "asyncio.wait_for"})
        return found

    assert violations(barred, ["controller"]) == {}


def test_the_controller_s_layers_import_downwards() -> None:
    def upwards(module: Path) -> list[str]:
        folder, _, file = str(module.relative_to(PACKAGE / "controller")).partition("/")
        if not file:
            return []
        names = (name.split(".")[2] for _, name in imports(module) if name.startswith("testbed.controller."))
        return sorted({f"{folder} → {name}" for name in names if name not in {folder, *LAYERS[folder]}})

    assert violations(upwards, ["controller"]) == {}


def test_workers_need_torch_and_what_reads_messages() -> None:
    allowed = sys.stdlib_module_names | WORKERS | {"testbed"}
    assert (
        violations(lambda module: {name.partition(".")[0] for _, name in imports(module)} - allowed, OF_WORKERS) == {}
    )


def test_a_scheme_is_known_without_torch_and_planning() -> None:
    """Files are read with options alone, and workers have no planning: functions import both when they are called."""

    def barred(module: Path) -> list[str]:
        at_top = imports_at_top(module)
        planning = {name for name in at_top if name.startswith("testbed.planning")}
        torch = {name for name in at_top if name.partition(".")[0] == "torch"}
        without = {"assignment": planning} | dict.fromkeys(AROUND_A_LOOP, torch)
        return sorted((planning | torch) - without.get(module.stem, set()))

    assert violations(barred, ["schemes"]) == {}


def imports_at_top(module: Path) -> set[str]:
    """Return the modules that are loaded with this one."""
    tree = tree_of(module)
    loaded = [node for node in tree.body if isinstance(node, ast.ImportFrom | ast.Import)]
    return {name for node in loaded for _, name in imports_in(ast.unparse(node), module.relative_to(PACKAGE.parent))}


def test_no_module_of_the_caller_s_folder_is_loaded_in_place_of_a_library_s() -> None:
    """`python -m` looks in the current folder first: another user may write there, and root calls the testbed."""
    unsafe = re.compile(r'(sys\.executable|/python"), "-m"')
    assert violations(lambda module: unsafe.findall(module.read_text(encoding="utf-8"))) == {}
