"""Tests of the simulation in ``benchmarks/scale``, whose simulated users call the real service as a trace describes."""

from dataclasses import replace

import pytest

from benchmarks.scale.arrivals import TRACES, make_trace
from benchmarks.scale.simulated_users import Observations
from benchmarks.scale.simulation import run


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the smallest trace of the benchmark, so that the tests take seconds."""
    monkeypatch.setitem(TRACES, "tiny", replace(TRACES["tiny"], seconds=3, burst=6, dark_s=1, lifetime_s=0.3))


def test_a_trace_leaves_no_cluster_and_no_vlan() -> None:
    found = run("tiny", "sqlite")
    assert found["faults"] == []
    assert found["clusters"] > 6


def test_a_vlan_shared_by_two_live_clusters_is_reported() -> None:
    seen = Observations()
    seen.add("one", {"s0000": 100, "s0001": 100}, "core0000")
    seen.add("two", {"s0001": 100}, None)
    assert seen.shared == ["VLAN 100 at site s0001: clusters one and two"]


def test_a_vlan_of_two_clusters_on_the_transport_is_reported() -> None:
    seen = Observations()
    seen.add("one", {"s0000": 100, "s0003": 100}, "core0000")
    seen.add("alone", {"s0001": 100}, None)
    seen.add("elsewhere", {"s0010": 100, "s0011": 100}, "core0010")
    assert seen.shared == []
    seen.add("two", {"s0002": 100, "s0004": 100}, "core0000")
    assert seen.shared == ["VLAN 100 at transport core0000: clusters one and two"]


def test_a_deleted_cluster_frees_its_vlans() -> None:
    seen = Observations()
    vlans = {"s0000": 100, "s0001": 100}
    seen.add("one", vlans, "core0000")
    seen.remove("one", vlans, "core0000")
    seen.add("two", vlans, "core0000")
    assert seen.shared == []


def test_equal_seeds_give_equal_traces() -> None:
    size = TRACES["standard"]
    assert make_trace(size, 1) == make_trace(size, 1) != make_trace(size, 2)
