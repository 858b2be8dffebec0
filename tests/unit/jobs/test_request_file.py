from typing import Any

import pytest
import yaml

from virtcloud.jobs.job_cluster_spec import JobRun, build_cluster_spec
from virtcloud.jobs.openpbs_request import JobShape, admit_pbs_job
from virtcloud.jobs.request import GuestRequest, JobRequest, parse_request
from virtcloud.jobs.request_file import EXAMPLE, merge_request_file
from virtcloud.jobs.request_values import RequestError

LINE = "spec=/home/a/c.yaml"
FILE: dict[str, Any] = {
    "name": "mine",
    "share": ["bob", "carol"],
    "subnet": "10.0.0.50/24",
    "vlan": 112,
    "hosts": [
        {"guests": [{"image": "head", "name": "db", "mem": "4gb", "mac": "02:00:00:00:00:0A", "addresses": []}]},
        {"guests": [{"image": "worker", "ncpus": 2}, {"image": "worker"}]},
    ],
}
JOB = JobShape(select="1:ncpus=4:mem=8gb+2:ncpus=4:mem=4gb", walltime="1:00:00")


def read(document: object, line: str = LINE) -> JobRequest:
    return merge_request_file(parse_request(line), document)


def refusal(document: object, line: str = LINE) -> str:
    with pytest.raises(RequestError) as caught:
        admit_pbs_job(read(document, line), JOB, 86400)
    return str(caught.value)


def guest(**keys: object) -> dict[str, object]:
    return {"hosts": [{"guests": [{"image": "a", **keys}]}]}


def test_a_file_describes_guests_host_by_host() -> None:
    head = GuestRequest("head", memory_mb=4096, name="db", mac="02:00:00:00:00:0a", addresses=())
    workers = (GuestRequest("worker", cpus=2), GuestRequest("worker"))
    parts = ((head,), workers)
    assert read(FILE) == JobRequest(
        parts, "mine", None, ("bob", "carol"), ("10.0.0.50/24",), vlan=112, spec="/home/a/c.yaml"
    )
    assert read(FILE).images == ("head", "worker")


@pytest.mark.parametrize(("text", "vpn"), [("yes", True), ("no", False), ("'yes'", True)])
def test_a_file_may_quote_the_value_of_vpn(text: str, vpn: bool) -> None:
    assert read(guest() | yaml.safe_load(f"vpn: {text}")).vpn is vpn


def test_the_last_host_of_a_file_applies_to_following_hosts() -> None:
    spec = build_cluster_spec(read(FILE), JobRun("12.pbssrv", "alice", ("n1", "n2", "n3"), 60))
    assert [(guest["name"], guest["host"], guest["image"], guest["addresses"]) for guest in spec["guests"]] == [
        ("db", "n1", "head", []),
        ("g2", "n2", "worker", ["10.0.0.50/24"]),
        ("g3", "n2", "worker", ["10.0.0.51/24"]),
        ("g4", "n3", "worker", ["10.0.0.52/24"]),
        ("g5", "n3", "worker", ["10.0.0.53/24"]),
    ]
    assert (spec["guests"][0]["mac"], "mac" in spec["guests"][1]) == ("02:00:00:00:00:0a", False)


def test_the_documented_file_is_valid() -> None:
    assert build_cluster_spec(read(yaml.safe_load(EXAMPLE)), JobRun("12.pbssrv", "alice", ("n1", "n2"), 60))["guests"][
        1
    ] == {
        "name": "g2",
        "host": "n2",
        "image": "debian12",
        "memory_mb": 2048,
        "cpus": 1,
        "addresses": ["10.0.0.50/24", "fd00::1/64"],
    }


def test_the_address_plan_skips_listed_addresses() -> None:
    document = {"hosts": [{"guests": [{"image": "a"}, {"image": "a", "addresses": "10.0.0.1/24"}]}]}
    spec = build_cluster_spec(read(document), JobRun("12.pbssrv", "alice", ("n1",), 60))
    assert [guest["addresses"] for guest in spec["guests"]] == [["10.0.0.2/24"], ["10.0.0.1/24"]]


def test_the_name_on_the_line_overrides_the_file() -> None:
    assert read(FILE, LINE + ":name=other").name == "other"


def test_a_job_with_chunks_for_all_guests_is_admitted() -> None:
    assert admit_pbs_job(read(FILE), JOB, 86400) == "scatter:excl"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            None,
            (
                "expected a mapping with name, net, share, subnet, vlan, filters, reach, services, service, vpn, "
                "outside, hosts, got nothing"
            ),
        ),
        (
            [],
            (
                "expected a mapping with name, net, share, subnet, vlan, filters, reach, services, service, vpn, "
                "outside, hosts, got []"
            ),
        ),
        ({}, "hosts: expected a list with the guests of each host, got nothing"),
        ({"hosts": []}, "hosts: expected the guests of at least one host, got none"),
        ({"hosts": {}}, "hosts: expected a list, got {}"),
        (
            {"hosts": [{}], "colour": 1},
            (
                "expected one of name, net, share, subnet, vlan, filters, reach, services, service, vpn, "
                "outside, hosts, got 'colour'"
            ),
        ),
        ({"hosts": [{}], "vlan": "7", "net": "x"}, "vlan: expected no value together with net=x, got 7"),
        (
            {"hosts": [{}], "share": ["bob", "b b"]},
            "share.1: expected names of users such as bob+carol, got 'b b'",
        ),
        (guest(mem="big"), "hosts.0.guests.0.mem: expected a size from 16mb to 16tb, such as 4gb, got 'big'"),
        (guest(ncpus=True), "hosts.0.guests.0.ncpus: expected a number from 1 to 1024, got True"),
        (
            guest(mac="01:00:00:00:00:01"),
            "hosts.0.guests.0.mac: expected a unicast MAC address such as 02:00:00:00:00:01, got '01:00:00:00:00:01'",
        ),
        (
            guest(addresses=["10.0.0.1"]),
            "hosts.0.guests.0.addresses.0: expected an address with its prefix length such as 10.0.0.5/24, got '10.",
        ),
        (
            guest(addresses=["127.0.0.2/24"]),
            "hosts.0.guests.0.addresses.0: expected a network without loopback addresses (127.0.0.0/8), got '127.0.0.",
        ),
        (guest(image=None), "hosts.0.guests.0.image: expected a name that matches [a-z][a-z0-9-]{0,31}, got None"),
        (
            guest(name="g2"),
            "hosts.0.guests.0.name: expected a name unlike g1, g2 and so on (default names of guests), got 'g2'",
        ),
        (guest(name="db"), "hosts.0.guests.0.name: expected no value, because this part applies to 3 hosts, got 'db'"),
        ({"hosts": [{}] * 4}, "hosts: expected at most 3 parts, one for each host of the job, got 4"),
        (
            {"hosts": [{"guests": [{"image": "a", "addresses": ["10.0.0.1/24"]}] * 2}, {}]},
            "hosts.0.guests.1.addresses: expected a value that hosts.0.guests.0 does not have, got '10.0.0.1'",
        ),
        (
            {"hosts": [{}, {"guests": [{"image": "a", "mem": "3gb"}, {"image": "a", "mem": "2gb"}]}]},
            "hosts.1: 2 guests need 5gb, the chunk has 4gb",
        ),
        ({"hosts": [{"guests": [{"image": "a", "mem": "8gb"}]}]}, "hosts.0: guest needs 8gb, the chunk has 4gb"),
        ({"hosts": [{"guests": [{"image": "a", "publish": "yes"}]}]}, "'publish' is not supported here"),
        ({"hosts": [{"guests": [{}]}]}, "hosts.0.guests.0.image: expected the name of an image (see 'virtcloud image"),
    ],
)
def test_a_fault_in_a_file_names_its_position(document: object, message: str) -> None:
    assert refusal(document).startswith("vcluster: /home/a/c.yaml: " + message)


def test_net_on_the_line_conflicts_with_the_files_name() -> None:
    message = "vcluster: /home/a/c.yaml: name: expected no value together with net=theirs, got 'mine'"
    assert refusal(FILE, LINE + ":net=theirs") == message


@pytest.mark.parametrize(
    ("line", "name", "net"),
    [
        ("", None, "theirs"),
        (":net=private", None, None),
        (":net=other", None, "other"),
        (":net=private:name=x", "x", None),
    ],
)
def test_net_on_the_line_overrides_net_in_the_file(line: str, name: str | None, net: str | None) -> None:
    request = read(guest() | {"net": "theirs"}, LINE + line)
    assert (request.name, request.net) == (name, net)


def test_net_private_on_the_line_permits_keys_of_a_new_network() -> None:
    assert read(guest() | {"net": "theirs", "vlan": 112}, LINE + ":net=private").vlan == 112


def test_a_file_requests_destinations_outside() -> None:
    assert read(guest() | {"outside": ["archive", "web"]}).outside == ("archive", "web")
