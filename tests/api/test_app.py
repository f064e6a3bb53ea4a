"""Requests to the API of a network whose links exist, but carry no packets."""

from __future__ import annotations

import http.client
import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect, unix_connect

from testbed.api.client import ApiClient, RequestFailed, RequestRefused, UnixConnection
from testbed.api.entry import write_entry
from testbed.api.requests import AddWorker, KillWorker, Request, RestartWorker, Stop
from testbed.api.server import ApiServer, PortTaken
from testbed.emulation.daemon.subject import NetworkSubject
from testbed.emulation.shaping.base import LinkCounters
from testbed.spec.topology import Topology
from tests.api.network import answering
from tests.spec.files import TOPOLOGY
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

LINK = "paris->tokyo"


class Site:
    """The API over a small network, at a socket and on a port."""

    def __init__(self, folder: Path, subject: NetworkSubject, server: ApiServer) -> None:
        self.folder = folder
        self.socket = folder / "api.sock"
        self.subject = subject
        self.server = server
        self.bearer = {"Authorization": f"Bearer {server.token}"}

    def send(
        self, method: str, path: str, text: Any, headers: dict[str, str], port: bool = True
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        connection: http.client.HTTPConnection = UnixConnection(self.socket, 20)
        if port:
            assert self.server.port is not None
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_S)
        connection.request(method, path, text, headers)
        reply = connection.getresponse()
        said = reply.read()
        connection.close()
        return reply.status, said, reply.headers

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, port: bool = False
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        text = body if body is None or isinstance(body, bytes) else json.dumps(body)
        kind = {"Content-Type": "application/json", **(headers or {})}
        status, said, received = self.send(method, f"/api/v1{path}", text, kind, port)
        return status, json.loads(said) if said.startswith((b"{", b"[")) else said.decode(), received

    def link(self, name: str = LINK) -> dict[str, Any]:
        status, link, headers = self.ask("GET", f"/links/{quote(name)}")
        assert status == 200 and headers["ETag"] == f'"{link["tag"]}"'
        return dict(link)

    def patch(self, patch: dict[str, Any], **headers: str) -> tuple[int, Any]:
        status, link, _ = self.ask("PATCH", f"/links/{quote(LINK)}", patch, headers)
        return status, link


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("api")
    (folder / "three.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    with answering(Topology.load(folder / "three.yaml"), folder / "api.sock", 0) as (subject, server):
        yield Site(folder, subject, server)


def values(link: dict[str, Any]) -> tuple[float, float, float, float]:
    return link["rate_bps"], link["delay_s"], link["jitter_s"], link["loss"]


def test_a_body_whose_fields_all_have_defaults_may_be_left_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []
    monkeypatch.setattr(site.subject, "do", lambda request: asked.append(request) or {})
    for body in (None, {}, {"reason": "enough"}):
        assert site.ask("POST", "/stop", body)[0] == 200
    assert asked == [Stop(reason="stopped by hand"), Stop(reason="stopped by hand"), Stop(reason="enough")]
    assert site.ask("PUT", "/policy")[0] == 422


def test_what_there_is(site: Site) -> None:
    assert set(site.ask("GET", "/sites")[1]) == {"paris", "tokyo", "dallas"}
    assert set(site.ask("GET", "/links")[1]) == set(site.subject.state()["links"])
    status = site.ask("GET", "/status")[1]
    assert (status["kind"], status["failure"], status["replay"]["paused"]) == ("network", None, False)
    for path, nothing in (("/plans", {}), ("/rounds", []), ("/decisions", []), ("/training", {})):
        assert site.ask("GET", path)[:2] == (200, nothing)


def test_a_link_has_its_queue_s_discipline_and_the_traffic_that_is_declared(tmp_path: Path) -> None:
    red = {"limit": "1bdp", "discipline": "red", "min": "20%"}
    links = [{**TOPOLOGY["links"][0], "queue": red}, *TOPOLOGY["links"][1:]]
    traffic = [{"link": LINK, "on_off": {"rate": "30%", "busy": "1s", "idle": "2s"}}]
    topology = Topology.from_value({**TOPOLOGY, "links": links, "traffic": traffic}, tmp_path / "three.yaml")
    with answering(topology, tmp_path / "api.sock") as (subject, server):
        found = Site(tmp_path, subject, server).ask("GET", "/links")[1]
    assert found[LINK]["discipline"] == {"name": "red", "least": 0.2, "most": 0.3, "probability": 0.02}
    assert found[LINK]["declared_traffic"] == [{"on_off": {"rate": {"bps": 0, "share": 0.3}, "busy": 1, "idle": 2}}]
    others = [link for name, link in found.items() if name not in (LINK, "tokyo->paris")]
    assert others and all(link["discipline"] == {"name": "droptail"} for link in others)
    assert found["tokyo->paris"]["declared_traffic"] == []


def test_a_change_leaves_what_it_does_not_name_and_null_takes_one_back(site: Site) -> None:
    before = site.link()
    assert site.patch({"rate": "5mbit", "delay": "7ms"})[0] == 200
    assert site.patch({"loss": "1%"})[0] == 200
    link = site.link()
    assert values(link) == (5e6, 0.007, before["jitter_s"], 0.01)
    assert link["changed"] == {"rate_bps": 5e6, "delay_s": 0.007, "jitter_s": None, "loss": 0.01}
    assert link["declared"] == before["declared"]
    assert site.patch({"rate": None})[1]["rate_bps"] == before["rate_bps"]
    assert site.patch({"delay": None, "loss": None})[0] == 200
    assert site.link() == before, "and with it the tag"


def test_a_link_is_named_in_any_of_three_ways(site: Site) -> None:
    before = site.link()
    for name in ("paris-tokyo", "[paris,tokyo]"):
        status, link, _ = site.ask("PATCH", f"/links/{quote(name)}", {"rate": "5mbit"})
        assert (status, link["source"], link["target"]) == (200, "paris", "tokyo")
        assert site.ask("GET", f"/links/{quote(name)}")[1] == link
        status, links, _ = site.ask("PATCH", "/links", {name: {"rate": None}})
        assert (status, set(links)) == (200, {LINK})
    assert site.link() == before
    assert site.ask("PATCH", "/links", {LINK: {"rate": "5mbit"}, "paris-tokyo": {"rate": "6mbit"}})[0] == 422
    assert site.link() == before


def test_a_stale_tag_changes_nothing(site: Site) -> None:
    before = site.link()
    status, link = site.patch({"rate": "5mbit"}, **{"If-Match": f'"{before["tag"]}"'})
    assert status == 200
    status, refusal = site.patch({"rate": "6mbit"}, **{"If-Match": f'"{before["tag"]}"'})
    assert status == 412 and refusal["detail"]
    assert site.link() == link
    assert site.patch({"rate": None}, **{"If-Match": f'"{link["tag"]}"'})[0] == 200  # undone
    assert site.patch({}, **{"If-Match": "*"})[0] == 200
    assert site.link() == before


def test_of_several_changes_all_are_made_or_none(site: Site) -> None:
    before = site.ask("GET", "/links")[1]
    stale = {"rate": "1mbit", "tag": "0123456789abcdef"}
    for status, wrong in ((412, stale), (422, {"delay": "7"}), (422, {"speed": "7ms"})):
        assert site.ask("PATCH", "/links", {LINK: {"rate": "5mbit"}, "tokyo->paris": wrong})[0] == status
    assert site.ask("PATCH", "/links", {LINK: {"rate": "5mbit"}, "oslo->paris": {}})[0] == 404
    assert site.ask("GET", "/links")[1] == before
    status, links, _ = site.ask("PATCH", "/links", {LINK: {"rate": "5mbit"}, "tokyo->paris": {"up": False}})
    assert status == 200
    assert (links[LINK]["rate_bps"], links[LINK]["up"], links["tokyo->paris"]["up"]) == (5e6, False, False)
    assert site.ask("PATCH", "/links", {LINK: {"rate": None, "up": True}})[0] == 200
    assert site.ask("GET", "/links")[1] == before


def test_one_worker_more_is_a_site_s_next(site: Site) -> None:
    before = site.ask("GET", "/sites")[1]
    status, said, _ = site.ask("POST", "/workers", {"site": "tokyo"})
    assert (status, said["result"]) == (
        200,
        {"worker": "tokyo-w1", "site": "tokyo", "address": "an address of tokyo"},
    )
    assert ApiClient(site.socket, "it").do(AddWorker(site="tokyo"))["worker"] == "tokyo-w2"
    added = [*before["tokyo"]["workers"], "tokyo-w1", "tokyo-w2"]
    assert site.ask("GET", "/sites")[1] == {**before, "tokyo": {**before["tokyo"], "workers": added}}
    told = [(event["kind"], event["target"], event["by"]) for event in site.ask("GET", "/events")[1][-2:]]
    assert told == [("add", "tokyo-w1", "hand"), ("add", "tokyo-w2", "hand")]
    for request in (KillWorker(worker="tokyo-w1"), RestartWorker(worker="tokyo-w1")):
        with pytest.raises(RequestRefused):
            ApiClient(site.socket, "it").do(request)


def test_what_happened_was_done_by_hand(site: Site) -> None:
    count = len(site.ask("GET", "/events")[1])
    site.patch({"rate": "5mbit", "up": False})
    site.patch({"rate": None, "up": True})
    told = [(event["kind"], event["target"], event["by"]) for event in site.ask("GET", "/events")[1][count:]]
    pair = "paris-tokyo"
    assert told == [
        (kind, of, "hand") for kind, of in (("change", LINK), ("down", pair), ("change", LINK), ("up", pair))
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/links/paris-%3Eoslo", None, 404),
        ("PATCH", "/links/paris-%3Eoslo", {"rate": "5mbit"}, 404),
        ("PATCH", "/links/paris-%3Etokyo", {"rate": "fast"}, 422),
        ("PATCH", "/links/paris-%3Etokyo", {"rate": 5}, 422),
        ("PATCH", "/links/paris-%3Etokyo", ["rate"], 422),
        ("PUT", "/replay", {"paused": 1}, 422),
        ("PUT", "/network", {"file": "/no/such.yaml"}, 404),
        ("PUT", "/network", {"file": "/"}, 404),
        ("DELETE", "/links", None, 405),
        ("PUT", "/network", {"file": "three.yaml"}, 422),
        ("PUT", "/policy", {"policy": "mst"}, 409),
        ("PUT", "/plan", {"plan": {}}, 409),
        ("PUT", "/plan", {"plan": []}, 422),
        ("PUT", "/graph", {"kind": "ring"}, 409),
        ("POST", "/workers", {"site": "rome"}, 404),
        ("POST", "/workers", {"site": ""}, 422),
        ("POST", "/workers", {"site": "paris", "speed": 2}, 422),
        ("POST", "/workers", None, 422),
        ("POST", "/launches", {"kind": "party", "target": "x"}, 422),
        ("POST", "/launches", {"kind": "launch", "target": "\ud800"}, 400),
        ("PATCH", "/links", {"\ud800": {"up": False}}, 400),
        ("POST", "/stop", {"reason": "\ud800"}, 400),
        ("POST", "/stop", b'{"reason": "\xed\xa0\x80"}', 400),
        ("POST", "/stop", '{"reason": "\\ud800"}'.encode("utf-16"), 400),
        ("POST", "/workers/paris-w0/kill", None, 409),
        ("POST", "/workers/paris-w0/restart", None, 409),
        ("GET", "/history?since=x", None, 422),
    ],
)
def test_what_cannot_be_is_refused_in_words(site: Site, method: str, path: str, body: Any, status: int) -> None:
    got, said, _ = site.ask(method, path, body)
    assert (got, type(said["detail"])) == (status, str) and said["detail"]


@pytest.mark.parametrize("path", ["/nothing", "/links/paris%2Ftokyo"])
def test_an_unknown_path_is_told_where_all_paths_are(site: Site, path: str) -> None:
    status, said, _ = site.ask("GET", path)
    assert status == 404 and "/api/v1/openapi.json" in said["detail"]


@pytest.mark.parametrize("path", ["/links", "/links/paris-%3Etokyo"])
def test_a_path_says_all_that_it_takes(site: Site, path: str) -> None:
    status, _, headers = site.ask("OPTIONS", path)
    assert (status, headers["Allow"]) == (405, "GET, PATCH")


def test_verbs_come_one_after_the_other_in_one_thread(site: Site) -> None:
    threads = {site.subject.executor.submit(threading.get_ident).result() for _ in range(4)}
    askers = [threading.Thread(target=site.patch, args=({"jitter": f"{number}ms"},)) for number in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert threads == {site.subject.executor.submit(threading.get_ident).result()}
    assert site.patch({"jitter": None})[0] == 200


def test_a_change_by_anybody_is_pushed_to_all_subscribers(site: Site) -> None:
    assert site.server.port is not None
    with unix_connect(str(site.socket), "ws://localhost/api/v1/stream") as one:
        state = json.loads(one.recv(60))
        assert state["kind"] == "snapshot" and state["state"]["links"][LINK] == site.link()
        with connect(f"ws://127.0.0.1:{site.server.port}/api/v1/stream") as other:
            other.send(json.dumps({"token": site.server.token}))
            assert json.loads(other.recv(60))["kind"] == "snapshot"
            ApiClient(site.socket, "it").change_link(LINK, {"rate": "3mbit"})
            for follower in (one, other):
                number = state["number"]
                while True:
                    update = json.loads(follower.recv(60))
                    if follower is one:
                        number += 1
                        assert (update["kind"], update["number"]) == ("update", number)
                    if (link := update["set"].get("links", {}).get(LINK)) and link["rate_bps"] == 3e6:
                        break
        one.send(json.dumps({"kind": "snapshot"}))
        while (message := json.loads(one.recv(60)))["kind"] != "snapshot":
            pass
        assert message["state"]["links"][LINK]["rate_bps"] == 3e6
    site.patch({"rate": None})


def test_the_socket_is_its_owner_s_and_the_port_needs_the_token(site: Site) -> None:
    assert stat.S_IMODE(site.socket.stat().st_mode) == 0o600
    assert site.ask("GET", "/sites", port=True)[0] == 401
    assert site.ask("GET", "/sites", headers=site.bearer, port=True)[0] == 200
    assert site.ask("GET", "/sites", headers={**site.bearer, "Host": "evil.example"}, port=True)[0] == 421
    assert site.ask("GET", "/sites", headers={**site.bearer, "Origin": "http://evil.example"}, port=True)[0] == 403
    with pytest.raises(PortTaken, match=f"--port {site.server.port}"):
        ApiServer(site.subject, site.folder / "other.sock", site.server.port)


def test_the_files_that_lead_to_the_page_are_the_user_s_alone(site: Site) -> None:
    assert site.server.port is not None
    page = write_entry(site.folder, site.server.port, site.server.token)
    assert f"http://127.0.0.1:{site.server.port}/#token={site.server.token}" in page.read_text()
    for file in (page, site.folder / "api.token"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_client_tells_refusals_from_failures(site: Site, tmp_path: Path) -> None:
    client = ApiClient(site.socket, "the network three")
    assert client.status()["name"] == "three"
    known = client.history(None)
    assert {state["link"] for state in known["states"]} == set(site.subject.state()["links"])
    assert client.history(known["count"])["states"] == []
    with pytest.raises(RequestRefused, match="rome->oslo"):
        client.change_link("rome->oslo", {"up": False})
    with pytest.raises(RequestFailed, match="network one"):
        ApiClient(tmp_path / "nobody.sock", "the network one").status()


def test_prometheus_reads_its_links(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    shaper = site.subject._testbed.network.shaper
    counters = LinkCounters(packets=700, bytes=1_000_000, dropped_queue=4, dropped_loss=5, backlog_bytes=3000)
    monkeypatch.setattr(shaper, "counted", {LINK: counters})
    site.patch({"rate": "5mbit", "delay": "20ms"})
    assert site.send("GET", "/metrics", None, {})[0] == 401
    status, text, headers = site.send("GET", "/metrics", None, site.bearer)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = {
        (sample.name, sample.labels.get("link"), sample.labels.get("reason")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert found["testbed_link_rate_bytes_per_second", LINK, None] == pytest.approx(5e6 / 8)
    assert found["testbed_link_delay_seconds", LINK, None] == pytest.approx(0.02)
    assert found["testbed_link_carried_bytes_total", LINK, None] == 1_000_000
    assert found["testbed_link_dropped_packets_total", LINK, "queue"] == 4
    assert found["testbed_link_dropped_packets_total", LINK, "loss"] == 5
    assert found["testbed_link_backlog_bytes", LINK, None] == 3000
    site.patch({"rate": None, "delay": None})
    assert not any(name.startswith("testbed_run") for name, _, _ in found)


@pytest.mark.parametrize("path", ["/", "/metrics", "/page/main.js"])
def test_what_is_not_json_has_headers_for_those_that_ask_for_them_alone(site: Site, path: str) -> None:
    """As `curl -I` does."""
    assert site.send("HEAD", path, None, site.bearer)[:2] == (200, b"")


def test_an_error_that_no_route_foresaw_is_answered_in_words(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.subject, "status", Mock(side_effect=ZeroDivisionError("by nobody's fault")))
    status, answer, _ = site.ask("GET", "/status")
    assert status == 500
    assert "by nobody's fault" in answer["detail"]
    with pytest.raises(RequestFailed, match="by nobody's fault"):
        ApiClient(site.socket, "one").status()
