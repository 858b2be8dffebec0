import json
import signal
from pathlib import Path

import pytest
from support.cli_calls import CREATE, RunCommand
from support.fake_machine.clusters import DOCUMENTS, FakeSbf

from virtcloud.client.cluster import Cluster
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.errors import ServiceUnreachable


def test_create_waits_until_active_and_prints_the_vlan_id(run: RunCommand) -> None:
    result = run(*CREATE)
    assert (result.exit_code, result.stdout[:27]) == (0, "cluster demo is active afte")
    assert "VLAN 100 at brno, praha; lease ends 2026-07-01" in result.stdout


def test_progress_has_a_line_for_each_element(run: RunCommand) -> None:
    lines = [line.partition(" s  ")[2] for line in run(*CREATE).stderr.splitlines()]
    assert lines == [
        "demo: configuring",
        "brno-sw: waiting for VLAN 100 on its ports",
        "brno-h1: waiting for VLAN 100 and g1",
        "demo: active",
        "brno-sw: has VLAN 100 on its ports",
        "brno-h1: has VLAN 100 and g1",
    ]


def test_a_warning_reports_that_an_old_sbf_assigned_no_addresses(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.is_old = True
    assert run(*CREATE).stderr.splitlines()[-1].partition(";")[0] == (
        "virtcloud: the guests of cluster demo have no addresses: expected addresses from SBF, got none"
    )


@pytest.mark.parametrize("options", [("--network", "10.0.0.0/24"), ("--subnet", "none"), ("--join", "other")])
def test_requests_that_need_no_assigned_addresses_get_no_warning(
    run: RunCommand, sbf: FakeSbf, options: tuple[str, ...]
) -> None:
    sbf.is_old = True
    assert "no addresses" not in run(*CREATE, *options).stderr


def test_a_networks_filters_are_options_and_are_shown(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--filters", "addresses", "--serve", "dhcp", "--serve", "ra")
    assert (sbf.requests[0].spec.filters, sbf.requests[0].spec.serves) == ("addresses", ("dhcp", "ra"))
    lines = run("cluster", "show", "demo").stdout.splitlines()
    assert {"filters of guests: addresses", "services of guests: dhcp, ra"} <= {*lines}


def test_the_services_of_hosts_are_options_and_are_shown(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--host-service", "dhcp", "--host-service", "dns")
    assert sbf.requests[0].spec.host_services == ("dhcp", "dns")
    assert "services of hosts: dhcp, dns" in run("cluster", "show", "demo").stdout.splitlines()


def test_the_options_become_the_spec(run: RunCommand, sbf: FakeSbf) -> None:
    run(
        *CREATE,
        "--guests-per-host",
        "2",
        "--network",
        "10.1.0.0/16",
        "--lease",
        "1d",
        "--deadline",
        "60s",
        "--attempt",
        "3",
    )
    request = sbf.requests[0]
    assert (request.attempt, request.spec.lease_s, request.spec.deadline_s) == (3, 86400, 60)
    assert [guest.addresses for guest in request.spec.guests] == [("10.1.0.1/16",), ("10.1.0.2/16",)]


@pytest.mark.parametrize(
    ("options", "subnets"),
    [
        ((), None),
        (("--subnet", "10.1.0.0/16", "--subnet", "fd00::/64"), ("10.1.0.0/16", "fd00::/64")),
        (("--subnet", "none"), ()),
    ],
)
def test_sbf_assigns_the_addresses_if_option_network_is_absent(
    run: RunCommand, sbf: FakeSbf, options: tuple[str, ...], subnets: tuple[str, ...] | None
) -> None:
    run(*CREATE, *options)
    assert (sbf.requests[0].spec.subnets, sbf.requests[0].spec.guests[0].addresses) == (subnets, ())


def test_guests_without_hosts_become_the_key_spread(run: RunCommand, sbf: FakeSbf) -> None:
    size = ("--cpus", "2", "--memory", "2048", "--guest-prefix", "n")
    run(
        "cluster", "create", "demo", "--guests", "12", "--sites", "brno,praha", "--image", "busybox", *size, "--no-wait"
    )
    assert sbf.requests[0].spec.model_dump(include={"hosts", "guests", "spread"}) == {
        "hosts": (),
        "guests": (),
        "spread": {
            "count": 12,
            "image": "busybox",
            "sites": ("brno", "praha"),
            "prefix": "n",
            "memory_mb": 2048,
            "cpus": 2,
            "user_data": None,
        },
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sites", "brno", "--host", "h1", "--image", "i"), "expected --guests N with --sites"),
        (("--guests", "2", "--sites", "", "--image", "i"), "--sites: expected names of sites, got an empty text"),
        (("--guests", "2"), "expected --image NAME"),
        (("--guests", "2", "--image", "i", "--network", "10.0.0.0/24"), "expected --subnet with --guests"),
        (("--guests", "2", "--image", "i", "--guests-per-host", "1"), "expected --guests or --guests-per-host"),
        (("--reach", "brno", "--image", "i", "--cpus", "2"), "expected --host or --guests N with --cpus, --image, got"),
    ],
)
def test_contradicting_placement_options_send_nothing(
    run: RunCommand, sbf: FakeSbf, options: tuple[str, ...], message: str
) -> None:
    result = run("cluster", "create", "demo", *options)
    assert (result.exit_code, sbf.requests) == (2, [])
    assert message in result.stderr


LIMITS = ("--disk", "1024", "--extra-disk", "data=64", "--pids", "500", "--bandwidth", "100")
LIMIT_FIELDS = {
    "disk_mb": 1024,
    "disks": ({"name": "data", "size_mb": 64},),
    "pids": 500,
    "bandwidth_mbit": 100,
}


def test_limits_and_disks_of_guests_are_options(run: RunCommand, sbf: FakeSbf) -> None:
    run("cluster", "create", "a", "--host", "brno-h1", "--image", "busybox", *LIMITS, "--no-wait")
    run("cluster", "create", "b", "--guests", "2", "--image", "busybox", *LIMITS, "--no-wait")
    fixed, spread = (request.spec for request in sbf.requests)
    assert fixed.guests[0].model_dump(include=set(LIMIT_FIELDS)) == LIMIT_FIELDS
    assert spread.spread is not None
    assert spread.spread.model_dump(include=set(LIMIT_FIELDS)) == LIMIT_FIELDS


def test_sizes_may_have_a_unit(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--memory", "2gb", "--disk", "1tb", "--extra-disk", "data=64mb")
    guest = sbf.requests[0].spec.guests[0]
    assert (guest.memory_mb, guest.disk_mb, [disk.size_mb for disk in guest.disks]) == (2048, 1 << 20, [64])


@pytest.mark.parametrize("disk", ["data", "data=", "data=x", "=64", "Data=64", "data=1"])
def test_a_malformed_extra_disk_is_bad_input(run: RunCommand, sbf: FakeSbf, disk: str) -> None:
    result = run("cluster", "create", "a", "--host", "brno-h1", "--image", "busybox", "--extra-disk", disk)
    assert (result.exit_code, sbf.requests) == (2, [])


def test_the_size_of_guests_is_an_option(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--cpus", "2", "--memory", "2048")
    assert [(guest.cpus, guest.memory_mb) for guest in sbf.requests[0].spec.guests] == [(2, 2048)]


def test_options_override_the_spec_file(run: RunCommand, sbf: FakeSbf, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("owner: eva\nhosts: [brno-h1]\nlease_s: 60\n")
    run("cluster", "create", "demo", "--spec", str(tmp_path / "spec.yaml"), "--lease", "2h")
    assert sbf.requests[0].spec == ClusterSpec.model_validate({"owner": "eva", "hosts": ["brno-h1"], "lease_s": 7200})


@pytest.mark.parametrize("line", ["", "owner:\n"])
@pytest.mark.parametrize(("options", "owner"), [((), "pbs"), (("--owner", "eva"), "eva")])
def test_a_spec_file_without_owner_gets_the_default_owner(
    run: RunCommand, sbf: FakeSbf, options: tuple[str, ...], owner: str, line: str
) -> None:
    run("cluster", "create", "demo", "--spec", "-", "--no-wait", *options, stdin=f"{line}hosts: [brno-h1]\n")
    assert [request.spec.owner for request in sbf.requests] == [owner]


@pytest.mark.parametrize("spec", ["hosts: [brno-h1]\n", "owner: eva\nhosts: [brno-h1]\n"])
def test_a_malformed_owner_is_blamed_on_the_option(run: RunCommand, sbf: FakeSbf, spec: str) -> None:
    result = run("cluster", "create", "demo", "--spec", "-", "--owner", "eva novak", stdin=spec)
    assert (result.exit_code, sbf.requests) == (2, [])
    assert result.stderr.startswith("virtcloud: --owner: expected a user name: letters, digits, ")


def test_subnets_contradict_guests_without_addresses(run: RunCommand, sbf: FakeSbf) -> None:
    result = run(*CREATE, "--subnet", "none", "--subnet", "10.0.0.0/24")
    assert (result.exit_code, sbf.requests) == (2, [])
    assert result.stderr.startswith("virtcloud: --subnet: expected subnets or none, got none and 10.0.0.0/24: omit ")


@pytest.mark.parametrize(
    "option",
    [
        "--host=h1",
        "--guests=2",
        "--guests-per-host=1",
        "--guest-prefix=m",
        "--network=10.0.0.0/24",
        "--cpus=2",
        "--memory=512",
        "--image=busybox",
        "--disk=20000",
        "--extra-disk=data=100",
        "--pids=100",
        "--bandwidth=10",
        "--user-data=-",
    ],
)
def test_an_option_about_guests_contradicts_a_spec_file(run: RunCommand, sbf: FakeSbf, option: str) -> None:
    result = run("cluster", "create", "demo", "--spec", "-", option, stdin="hosts: [brno-h1]\n")
    assert (result.exit_code, sbf.requests) == (2, [])
    assert result.stderr.startswith(
        f"virtcloud: expected hosts and guests in the file of --spec, got {option.partition('=')[0]}: "
    )


def test_a_spec_file_overrides_the_image_of_the_environment(
    run: RunCommand, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTCLOUD_IMAGE", "busybox")
    run("cluster", "create", "demo", "--spec", "-", "--no-wait", stdin="owner: eva\nhosts: [brno-h1]\n")
    assert [request.spec.guests for request in sbf.requests] == [()]


def test_a_malformed_spec_is_reported_with_file_and_line(run: RunCommand, sbf: FakeSbf, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("owner: eva\nhosts: [brno-h1]\nlease: 60\n")
    result = run("cluster", "create", "demo", "--spec", str(tmp_path / "spec.yaml"))
    assert (result.exit_code, sbf.requests) == (2, [])
    assert f"virtcloud: {tmp_path}/spec.yaml:3: lease: unknown key; check its spelling" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cluster", "create", "demo"), "expected either --host"),
        (("cluster", "create", "Demo", "--host", "h1", "--image", "i"), "expected a cluster key"),
        (("cluster", "create", "demo", "--host", "h1", "--lease", "4x"), "expected a duration"),
        (("cluster", "create", "demo", "--host", "h1", "--image", "i", "--network", "x"), "expected a network"),
        (("cluster", "show", "never"), "cluster never is not known"),
        (("cluster", "ssh", "demo", "-i", "/nosuch"), "/nosuch: expected a file with your private key"),
        (("cluster", "run", "demo", "-i", "/nosuch", "--", "true"), "/nosuch: expected a file with your private key"),
    ],
)
def test_bad_input_exits_with_2_and_a_message(run: RunCommand, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, message in result.stderr, "Traceback" in result.output) == (2, True, False)


def test_a_network_without_its_prefix_length_is_not_sent(run: RunCommand, sbf: FakeSbf) -> None:
    result = run(*CREATE, "--network", "10.0.0.0")
    assert (result.exit_code, sbf.requests) == (2, [])
    assert "with its prefix length, got '10.0.0.0'" in result.stderr


def test_a_network_without_a_free_address_counts_the_guests(run: RunCommand) -> None:
    result = run(*CREATE, "--network", "10.0.0.255/24")
    assert result.stderr == ("virtcloud: network 10.0.0.255/24 has 0 addresses for 1 guest; choose a larger network\n")


def test_guests_without_an_image_are_not_sent(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("cluster", "create", "demo", "--host", "brno-h1")
    assert (result.exit_code, sbf.requests) == (2, [])
    assert "expected --image NAME (or VIRTCLOUD_IMAGE) for the guests, got none" in result.stderr


def test_the_default_owner_is_the_user_of_the_token(run: RunCommand, sbf: FakeSbf) -> None:
    run("cluster", "create", "demo", "--host", "brno-h1", "--image", "busybox", "--no-wait")
    assert sbf.requests[0].spec.owner == "pbs"


def test_a_network_without_guests_needs_no_image(run: RunCommand, sbf: FakeSbf) -> None:
    run("cluster", "create", "demo", "--host", "brno-h1", "--guests-per-host", "0", "--no-wait")
    assert (sbf.requests[0].spec.hosts, sbf.requests[0].spec.guests) == (("brno-h1",), ())


def test_the_error_for_a_taken_guest_name_names_options(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.refuses = (409, "guest-taken", "guest g1 has the name g1, which a guest of cluster demo has")
    result = run(*CREATE, "--join", "demo")
    assert result.exit_code == 1
    assert "Set the names and addresses with --guest-prefix and --network, for example" in result.stderr


def test_a_failed_cluster_exits_with_1_and_the_reason(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.next[ClusterState.CONFIGURING] = ClusterState.FAILING
    result = run(*CREATE)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "virtcloud: cluster demo is failed: brno-sw: it does not answer" in result.stderr


def test_no_free_vlan_exits_with_1(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.refuses = (409, "no-vlan-free", "no VLAN is free at brno")
    result = run(*CREATE)
    assert (result.exit_code, result.stderr) == (1, "virtcloud: no VLAN is free at brno\n")


def test_an_unreachable_sbf_exits_with_2_and_a_remedy(run: RunCommand) -> None:
    result = run(*CREATE, url="http://127.0.0.1:1")
    assert (result.exit_code, "check that SBF runs" in result.stderr) == (2, True)


def test_no_wait_returns_before_the_cluster_is_active(run: RunCommand) -> None:
    result = run(*CREATE, "--no-wait")
    assert (result.stdout, result.stderr) == (
        "cluster demo is configuring; wait for it: virtcloud cluster wait demo\n",
        "",
    )


def test_json_output_is_the_complete_document(run: RunCommand) -> None:
    document = json.loads(run(*CREATE, "--json").stdout)
    assert (document["state"], document["vlans"], len(document["placements"])) == (
        "active",
        {"brno": 100, "praha": 100},
        2,
    )


def test_a_name_and_a_vlan_id_can_be_requested(run: RunCommand) -> None:
    document = json.loads(run(*CREATE, "--name", "ring", "--vlan", "117", "--no-wait", "--json").stdout)
    assert (document["spec"]["name"], document["spec"]["vlan"]) == ("ring", 117)
    assert run("cluster", "list").stdout.splitlines()[1].split()[9] == "ring"
    assert run("cluster", "show", "demo").stdout.startswith("cluster demo (ring) of eva is ")


def test_a_network_is_joined_and_shared_by_options(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--name", "ring", "--share", "bob", "--share", "carol", "--no-wait")
    flags = ("--join", "ring", "--owner", "bob", "--guest-prefix", "m", "--network", "10.0.0.50/24")
    run("cluster", "create", "more", "--host", "plzen-h1", "--image", "busybox", *flags, "--no-wait")
    owner, member = (request.spec for request in sbf.requests)
    assert (owner.name, owner.shares_with, owner.joins) == ("ring", ("bob", "carol"), None)
    assert (member.joins, [(guest.name, guest.addresses) for guest in member.guests]) == (
        "ring",
        [("m1", ("10.0.0.50/24",))],
    )


def test_the_option_reach_adds_a_site_to_the_spec(run: RunCommand, sbf: FakeSbf) -> None:
    run("cluster", "create", "demo", "--reach", "plzen", "--name", "ring", "--owner", "eva", "--no-wait")
    assert (sbf.requests[0].spec.sites, sbf.requests[0].spec.all_hosts) == (("plzen",), ())


def test_creation_names_sites_where_the_vlan_id_is_not_free(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = [site("brno", "100-199"), site("praha", "100-199"), site("plzen", "300-399")]
    monkeypatch.setitem(DOCUMENTS, "/v1/sites", sites)
    result = run(*CREATE, "--name", "ring")
    assert result.stderr.splitlines()[-1] == (
        "virtcloud: VLAN 100 is not free at site plzen: clusters there can join the network of cluster demo only if "
        "the transport translates VLAN IDs. To reserve a VLAN ID at plzen, create the cluster with --reach plzen"
    )
    assert "site plzen" not in run(*CREATE).stderr


def test_creation_succeeds_even_if_the_sites_are_unknown(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DOCUMENTS, "/v1/sites")
    result = run(*CREATE, "--name", "ring")
    assert (result.exit_code, result.stdout.startswith("cluster demo is active")) == (0, True)
    assert result.stderr.splitlines()[-1] == (
        "virtcloud: cannot check from which sites clusters can join the network of cluster demo: no resource at "
        "/v1/sites; later, 'virtcloud site list' shows the free VLAN IDs of each site"
    )


def site(name: str, free: str) -> dict[str, object]:
    return {"name": name, "pool": free, "claimed": "", "quarantined": "", "free": free}


def test_ctrl_c_prints_that_the_cluster_continues(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Cluster, "wait_active", interrupt)
    result = run(*CREATE)
    assert result.exit_code == 130
    assert "cluster demo continues to be configured" in result.stderr
    assert "delete it: virtcloud cluster delete demo" in result.stderr


def test_the_cluster_continues_if_sbf_ends_during_the_wait(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 1, because the cluster was created. Without a cluster, an unreachable SBF means exit code 2."""

    def fail(*_: object) -> None:
        raise ServiceUnreachable("SBF does not answer")

    monkeypatch.setattr(Cluster, "wait_active", fail)
    result = run(*CREATE)
    message = "SBF does not answer. Cluster demo continues to be configured; show it later: virtcloud cluster show demo"
    assert (result.exit_code, result.stderr) == (1, f"virtcloud: {message}\n")
