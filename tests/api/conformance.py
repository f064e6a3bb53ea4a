"""Hold the API of a real network against its own description, by Schemathesis: `make test-api`.

No answer may be a 5xx, or one that the description lacks. Schemathesis sends invented values to each path: values that
fit, that do not, and none; the requests really act. Left out are `/stop`, which would end the network, and the checks
that take a refusal for a contradiction: a value may fit its schema and not the network.
"""

from __future__ import annotations

import subprocess
import sys
from tempfile import NamedTemporaryFile

from testbed.emulation.label import state_folder

NAME = "conformance"
TOPOLOGY = "topologies/smoke.yaml"
SCHEMATHESIS = "build/schemathesis/bin/schemathesis"
SETTINGS = """
headers = {{ Authorization = "Bearer {token}" }}
[[operations]]
include-path-regex = "/links/"
parameters = {{ name = "paris->london" }}
"""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
)


def main() -> int:
    """Return the exit status of Schemathesis: 0 if it found nothing."""
    testbed = (sys.executable, "-m", "testbed")
    subprocess.run((*testbed, "network", "up", TOPOLOGY, "--name", NAME, "--port", "0"), check=True)
    try:
        page, _, token = (state_folder(NAME) / "page.html").read_text().partition("url=")[2].partition("#token=")
        with NamedTemporaryFile("w", suffix=".toml") as settings:  # in a process list all could read the token
            settings.write(SETTINGS.format(token=token.partition('"')[0]))
            settings.flush()
            asked = (f"{page}api/v1/openapi.json", "--exclude-path-regex", "/stop$", "--checks", ",".join(CHECKS))
            how = ("--continue-on-failure", "--seed", "1")
            command = (SCHEMATHESIS, "--config-file", settings.name, "run", *asked, *how)
            return subprocess.run(command, check=False).returncode
    finally:
        subprocess.run((*testbed, "network", "down", "--name", NAME), check=True)


if __name__ == "__main__":
    sys.exit(main())
