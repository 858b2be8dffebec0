"""Tests of a job's start through a host's agent.

A hook of the batch system *announces* a run of the job to the agent with the request ``up``.
"""

import threading
from datetime import timedelta

import pytest
from support.hosts.job_socket_agent import Agent, FakeProber
from support.sbf_fakes.job_world import JOB, SPEC, active, end_run, state, until
from support.sbf_fakes.world import World, spec

from sbf_service.store.clusters import guest_power
from sbf_service.store.elements import error_reports
from virtcloud.agent.network.address_probe import IpAddress
from virtcloud.model.guests import GuestPower, GuestPowerRequest


def test_the_barrier_names_what_is_missing_until_every_guest_answers(world: World, host: Agent) -> None:
    world.put(JOB, SPEC, attempt=1)
    assert host.up(JOB) == {"ok": True}
    waits = "{} has not confirmed".format
    names = ("switch brno-sw1 at brno", "host brno-h1 at brno", "host praha-h1 at praha", "switch praha-sw1 at praha")
    assert (state(host)[0], sorted(state(host)[1])) == ("waiting", sorted(map(waits, names)))
    world.converge_switches()
    assert sorted(state(host)[1]) == sorted(map(waits, names[1:3]))
    world.confirm_hosts()
    world.sweep()
    guests = ["guest g1 does not answer at 10.0.0.1", "guest g2 does not answer at 10.0.0.2 or fd00::2"]
    assert state(host) == ("waiting", guests)
    host.bridges.answering["br100"] |= {"10.0.0.1"}
    assert state(host) == ("waiting", guests[1:])
    host.bridges.answering["br100"] |= {"fd00::2"}
    answer = host.ask("state", JOB, 1)
    folder = host.settings.jobs / JOB
    assert answer == {
        "ok": True,
        "state": "up",
        "missing": [],
        "reason": None,
        "facts": {
            "VCLUSTER_ID": JOB,
            "VCLUSTER_NAME": "demo",
            "VCLUSTER_VLAN": "100",
            "VCLUSTER_GUESTS": "g1 g2",
            "VCLUSTER_HOSTS": str(folder / "hosts"),
            "VCLUSTER_HOSTFILE": str(folder / "hostfile"),
            "VCLUSTER_SSH_CONFIG": str(folder / "ssh_config"),
            "VCLUSTER_KNOWN_HOSTS": str(folder / "known_hosts"),
        },
    }
    assert (folder / "hostfile").read_text() == "g1 slots=2\ng2 slots=1\n"


def test_a_guest_that_its_user_stopped_delays_no_job(world: World, host: Agent) -> None:
    active(world, host)
    host.bridges.answering["br100"] = {"10.0.0.1"}
    missing = ("waiting", ["guest g2 does not answer at 10.0.0.2 or fd00::2"])
    assert state(host) == missing
    switch_guest(world, GuestPower.OFF)
    assert state(host) == ("up", [])
    switch_guest(world, GuestPower.ON)
    assert state(host) == missing


def switch_guest(world: World, power: GuestPower) -> None:
    with world.store.change(who="root") as unit:
        guest_power.set_guest_power(unit, JOB, "g2", GuestPowerRequest(power=power))


def test_a_waiting_caller_is_answered_after_each_change(world: World, host: Agent) -> None:
    host.up(JOB)
    assert state(host) == ("waiting", [f"SBF has no cluster {JOB} on host brno-h1"])
    becoming = threading.Timer(0.2, lambda: active(world, host))
    becoming.start()
    until(lambda: state(host, wait=30)[0] == "up")
    becoming.join()


def test_a_waiting_caller_is_answered_when_fewer_parts_are_missing(world: World, host: Agent) -> None:
    """If the agent waited for both guests, the job's messages would claim for 30 s that both guests are unreachable."""
    active(world, host)
    answering = host.bridges.answering["br100"] = set()
    assert len(state(host)[1]) == 2
    threading.Timer(0.2, lambda: answering.add("10.0.0.1")).start()
    later = threading.Timer(20, lambda: answering.add("10.0.0.2"))
    later.start()
    assert state(host, wait=30) == ("waiting", ["guest g2 does not answer at 10.0.0.2 or fd00::2"])
    later.cancel()


def test_the_answer_contains_the_error_of_an_element(world: World, host: Agent) -> None:
    world.put(JOB, spec("brno-h1", "brno-h2", owner="root"), attempt=1)
    host.up(JOB)
    world.converge_switches()
    world.confirm("brno-h1", world.element("brno-h1").wanted_revision)
    with world.store.change(who="brno-h2") as unit:
        error_reports.record_error(unit, "brno-h2", "image debian\nis missing", timedelta(60))
    assert state(host) == ("waiting", ["host brno-h2 at brno has not confirmed (image debian is missing)"])


def test_a_cancelled_run_stays_cancelled_for_all_callers(world: World, host: Agent) -> None:
    """If the start barrier accepted a cancelled run, the MoM would start the script of a deleted job."""
    host.up(JOB)
    state(host)
    threading.Timer(0.2, lambda: host.ask("cancel", JOB, reason="qdel by alice")).start()
    answer = host.ask("state", JOB, wait=30)
    assert (answer["state"], answer["reason"]) == ("cancelled", "qdel by alice")
    active(world, host)
    assert host.ask("state", JOB)["state"] == "cancelled"


def test_a_run_cancelled_during_the_probes_does_not_start(
    world: World, host: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    active(world, host)

    def deleted_meanwhile(_prober: FakeProber, addresses: frozenset[IpAddress], seconds: float) -> frozenset[IpAddress]:
        assert host.ask("cancel", JOB, reason="qdel")["ok"]
        return addresses

    monkeypatch.setattr(FakeProber, "probe", deleted_meanwhile)
    assert host.ask("state", JOB)["state"] == "cancelled"
    assert not host.settings.jobs.exists()


def test_a_cluster_not_set_up_in_time_has_a_reason(world: World, host: Agent) -> None:
    world.put(JOB, SPEC, attempt=1)
    host.up(JOB)
    world.clock.advance(121)
    world.sweep()
    answer = host.ask("state", JOB, wait=30)
    assert answer["state"] == "failed"
    assert answer["reason"].startswith(
        "not set up in time: host brno-h1 at brno has not confirmed (its agent has never called SBF);"
    )


def test_a_cluster_ended_by_its_user_is_reported_as_ended(world: World, host: Agent) -> None:
    active(world, host)
    world.delete(JOB)
    answer = host.ask("state", JOB, wait=30)
    assert (answer["state"], answer["reason"]) == ("ended", "ended by its user")


def test_a_run_waits_for_the_request_of_its_cluster(world: World, host: Agent) -> None:
    active(world, host, 1)
    host.up(JOB, 2)
    assert state(host, attempt=2) == ("waiting", [f"cluster {JOB}: SBF still has attempt 1, not yet attempt 2"])


def test_a_removed_run_cannot_be_announced_again(world: World, host: Agent) -> None:
    active(world, host)
    end_run(world, host)
    assert host.up(JOB)["error"] == "gone"
    assert host.ask("state", JOB)["state"] == "ended"


def test_a_host_without_the_script_has_no_job_files(world: World, host: Agent) -> None:
    world.put(JOB, SPEC, attempt=1)
    world.settle()
    host.bridges.answering["br100"] = {"10.0.0.1", "10.0.0.2"}
    host.up(JOB, head=False)
    assert set(host.ask("state", JOB)["facts"]) == {"VCLUSTER_ID", "VCLUSTER_NAME", "VCLUSTER_VLAN", "VCLUSTER_GUESTS"}
    assert not host.settings.jobs.exists()


def test_an_announced_job_wakes_the_reconciler(host: Agent) -> None:
    host.up(JOB)
    assert host.wake_calls == ["wake"]
