"""Every query of the dashboard has an answer from a real Prometheus that reads our metrics.

`make test-dashboard` installs Prometheus; without it these tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from testbed.api.app import PROMETHEUS_TEXT
from testbed.telemetry.prometheus import metrics
from tests.ports import free_port
from tests.telemetry.test_prometheus import DASHBOARD, NETWORK, RUN
from tests.waiting import PATIENCE_S, until

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no Prometheus: make test-dashboard"),
]

CONFIGURATION = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - {{job_name: testbed, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}
"""


class Exporter(BaseHTTPRequestHandler):
    """Serves metrics as the controller does, with growing counters."""

    def do_GET(self) -> None:
        links = {
            name: {**link, "bytes": link["bytes"] + time.monotonic() * 1e5} for name, link in NETWORK["links"].items()
        }
        self.send_response(200)
        self.send_header("Content-Type", PROMETHEUS_TEXT)
        self.end_headers()
        self.wfile.write(metrics(RUN, {**NETWORK, "links": links}))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Prometheus that has read the metrics a few times."""
    folder = tmp_path_factory.mktemp("prometheus")
    with served() as port:
        (folder / "prometheus.yml").write_text(CONFIGURATION.format(port=port))
        address = f"127.0.0.1:{free_port()}"
        command = [
            *("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
            f"--web.listen-address={address}",
        ]
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                until(lambda: len(answers(address, "count_over_time(up[1m]) > 3")) == 1)
                yield address
            finally:
                process.terminate()


def answers(address: str, expression: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=PATIENCE_S) as reply:
            told = json.load(reply)
    except OSError:
        return []
    assert told["status"] == "success", told
    return list(told["data"]["result"])


def expressions() -> list[Any]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [pytest.param(t["expr"], id=f"{p['title']}, {t['refId']}") for p in panels for t in p["targets"]]


@pytest.mark.parametrize("expression", expressions())
def test_a_query_has_an_answer(expression: str, prometheus: str) -> None:
    assert answers(prometheus, expression)


def test_its_own_checker_finds_nothing_to_say_of_the_metrics(tmp_path: Path) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics(RUN, NETWORK), capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
