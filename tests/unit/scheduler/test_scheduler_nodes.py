"""Tests of alerts about nodes of a batch system that are not hosts in SBF's topology."""

from types import SimpleNamespace

import pytest

from virtcloud.model.topology import Topology
from virtcloud.scheduler.decision import AlertName
from virtcloud.scheduler.scheduler_nodes import NodeWatch, find_unfit_nodes
from virtcloud.scheduler.scheduler_settings import SchedulerSettings

SWITCH = {"name": "sw", "ports": ["p1"], "platform": "linux_bridge"}
HOSTS = [{"name": "brno-h1", "ports": ["eth0"]}]
TOPOLOGY = Topology.model_validate(
    {
        "name": "small",
        "sites": [{"name": "brno", "switches": [SWITCH], "hosts": HOSTS}],
        "links": [{"a": "sw:p1", "b": "brno-h1:eth0"}],
    }
)


def test_nodes_that_sbf_can_serve_raise_no_alert() -> None:
    assert find_unfit_nodes({"n1": "n1"}, TOPOLOGY, {"n1": "brno-h1"}, ()) == []
    assert find_unfit_nodes({"Brno-H1.example.org": "Brno-H1.example.org"}, TOPOLOGY, {}, ()) == []


def test_an_unknown_node_raises_an_alert() -> None:
    (alert,) = find_unfit_nodes({"n7": "n7"}, TOPOLOGY, {}, ())
    assert (alert.name, alert.about) == (AlertName.HOST_UNKNOWN, "n7")
    assert alert.text.startswith(
        "node n7: expected host n7 in SBF's topology, found no such element: add the host to the topology"
    )


def test_a_node_of_another_kind_raises_an_alert() -> None:
    (alert,) = find_unfit_nodes({"sw": "sw"}, TOPOLOGY, {}, ())
    assert (alert.name, "found a switch" in alert.text) == (AlertName.HOST_UNKNOWN, True)


def test_excluded_nodes_raise_no_alert() -> None:
    assert find_unfit_nodes({"login1": "login1", "login2": "login2"}, TOPOLOGY, {}, ("login*",)) == []


@pytest.mark.parametrize("name", ["n1", "n1.example.org"])
def test_settings_may_contain_nodes_or_their_full_names(name: str) -> None:
    node = {"n1": "n1.example.org"}
    assert find_unfit_nodes(node, TOPOLOGY, {name: "brno-h1"}, ()) == []
    assert find_unfit_nodes(node, TOPOLOGY, {}, (name,)) == []


def test_an_alert_ends_a_minute_after_its_remedy() -> None:
    nodes, now = {"n7": "n7"}, 0.0
    batch = SimpleNamespace(nodes=lambda: nodes)
    sbf = SimpleNamespace(topology=lambda: TOPOLOGY)
    watch = NodeWatch(batch, sbf, SchedulerSettings(), lambda: now)
    assert [alert.about for alert in watch.alerts()] == ["n7"]
    nodes = {"brno-h1": "brno-h1"}
    assert len(watch.alerts()) == 1
    now = 60.0
    assert watch.alerts() == ()
    nodes, now = {"n7": "n7"}, 600.0
    assert watch.alerts() == ()
