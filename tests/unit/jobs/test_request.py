import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtcloud.jobs.request import GuestRequest, JobRequest, parse_request
from virtcloud.jobs.request_keys import REQUEST_KEYS
from virtcloud.jobs.request_values import RequestError

KEYS = (
    "image, name, net, share, guests, mem, ncpus, disk, pids, bandwidth, filters, reach, "
    "services, service, vpn, outside, subnet, vlan, spec"
)


def refusal(text: str) -> str:
    with pytest.raises(RequestError) as caught:
        parse_request(text)
    return str(caught.value)


def test_an_image_alone_means_one_small_guest_per_host() -> None:
    assert parse_request("image=debian12") == JobRequest(
        ((GuestRequest("debian12", memory_mb=256, cpus=1),),), net=None
    )


def test_one_line_may_contain_all_keys() -> None:
    line = "image=debian12:name=mine:share=bob+carol:guests=2:mem=4gb:ncpus=2:subnet=10.0.0.0/24:vlan=1203"
    two = (GuestRequest("debian12", 4096, 2), GuestRequest("debian12", 4096, 2))
    assert parse_request(line) == JobRequest((two,), "mine", None, ("bob", "carol"), ("10.0.0.0/24",), 1203)


@pytest.mark.parametrize("key", REQUEST_KEYS)
def test_the_example_of_each_key_is_accepted(key: str) -> None:
    line = f"{key}={REQUEST_KEYS[key].example}"
    assert parse_request(line if key in {"image", "spec"} else f"image=a:{line}") != parse_request("image=a")


def test_a_job_requests_destinations_outside() -> None:
    assert parse_request("image=a:outside=archive+web").outside == ("archive", "web")


def test_addresses_may_begin_within_a_network() -> None:
    assert parse_request("image=a:subnet=10.0.0.50/24").subnet == ("10.0.0.50/24",)


def test_guests_may_have_both_families_of_addresses() -> None:
    assert parse_request("image=a:subnet=[10.0.0.0/24+fd00::/64]").subnet == ("10.0.0.0/24", "fd00::/64")


def test_the_last_part_applies_to_following_hosts() -> None:
    request = parse_request("image=debian12:guests=2")
    assert request.part(7) == (GuestRequest("debian12"), GuestRequest("debian12"))
    assert request.images == ("debian12",)


def test_net_private_requests_a_new_network() -> None:
    assert parse_request("image=debian12:net=private").net is None


def test_another_network_is_joined_by_its_name() -> None:
    assert parse_request("image=debian12:net=mine").net == "mine"


def test_an_ipv6_network_is_written_in_brackets() -> None:
    assert parse_request("image=debian12:subnet=[fd00::/64]:guests=2").subnet == ("fd00::/64",)


def test_a_file_may_replace_the_line() -> None:
    assert parse_request("spec=/home/alice/c.yaml:name=mine") == JobRequest(spec="/home/alice/c.yaml", name="mine")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "vcluster: expected a request such as image=debian12:guests=2, got nothing"),
        (" image=a", "vcluster: expected a key as the first word, got a space (character 1)"),
        ("guests=2", "vcluster: image: expected the name of an image, got none; see 'virtcloud image list'"),
        (
            "image=a:guests=many",
            "vcluster: guests: expected a number from 1 to 64, got 'many' (character 9)",
        ),
        ("image=a:guests=65", "vcluster: guests: expected a number from 1 to 64, got '65' (character 9)"),
        ("image=a:mem=big", "vcluster: mem: expected a size from 16mb to 16tb, such as 4gb, got 'big' (character 9)"),
        ("image=a:vlan=1", "vcluster: vlan: expected a VLAN ID from 2 to 4094, got '1' (character 9)"),
        (
            "image=a:subnet=10.0.0.1",
            "vcluster: subnet: expected a network such as 10.0.0.0/24 or [fd00::/64], or a first address such as 10.",
        ),
        (
            "image=a:subnet=[::ffff:10.0.0.0/120]",
            "vcluster: subnet: expected a network without IPv4-mapped addresses (::ffff:0:0/96), got '::ffff:10.0.0.",
        ),
        (
            "image=a:subnet=10.0.0.0/24+10.1.0.0/24",
            "vcluster: subnet: expected at most one IPv4 subnet and one IPv6 subnet, got '10.0.0.0/24+10.1.0.0/24'",
        ),
        ("image=a:share=bob+", "vcluster: share: expected names of users such as bob+carol, got 'bob+' (character 9)"),
        (
            "image=a:net=mine:share=bob",
            "vcluster: share: expected no value together with net=mine, got 'bob' (character 18)",
        ),
        (
            "image=a:services=dhcp+ntp",
            "vcluster: services: expected dhcp, dns or metadata, such as dhcp+dns, got 'dhcp+ntp' (character 9)",
        ),
        (
            "image=a:services=dns",
            "vcluster: services: expected dhcp too, because guests find the servers by DHCP, got 'dns' (char",
        ),
        (
            "image=a:services=dhcp+metadata:filters=open",
            "vcluster: services: expected no metadata together with filters=open, got 'dhcp+metadata' (character 9)",
        ),
        (
            "image=a:services=dhcp:net=mine",
            "vcluster: services: expected no value together with net=mine, got 'dhcp' (character 9)",
        ),
        ("image=a:image=b", "vcluster: image: expected this key once, got it twice (character 9)"),
        ("image=a:guests", "vcluster: guests: expected a value, got none (character 9)"),
        ("image=a:publish=yes", "vcluster: 'publish' is not supported here (character 9)"),
        (
            "image=a:colour=red",
            f"vcluster: expected one of {KEYS}, got 'colour' (",
        ),
        ("image=a:name=Mine", "vcluster: name must match [a-z][a-z0-9-]{0,31}, got 'Mine'"),
        ("image=A", "vcluster: image: expected a name that matches [a-z][a-z0-9-]{0,31}, got 'A' (character 1)"),
        (
            "image=a::guests=2",
            f"vcluster: expected one of {KEYS}, got ''",
        ),
        (
            "image=a:subnet=[fd00::/64",
            "vcluster: expected key=value pairs separated by ':', got 'image=a:subnet=[fd00::/64' (character 9)",
        ),
        ("spec=c.yaml", "vcluster: spec: expected a path that starts with /, got 'c.yaml' (character 1)"),
        (
            "spec=/c.yaml:guests=2",
            "vcluster: guests: expected this key in the file /c.yaml, got it on the line (character 14)",
        ),
        (
            "image=a:net=mine:vlan=7",
            "vcluster: vlan: expected no value together with net=mine, got '7' (character 18)",
        ),
    ],
)
def test_an_invalid_request_names_key_expectation_and_position(line: str, message: str) -> None:
    assert refusal(line).startswith(message)


@given(st.text(alphabet="abimge=:[]/0129-. \n\u00e9", max_size=40))
def test_any_text_parses_or_fails_with_one_line(line: str) -> None:
    try:
        parse_request(line)
    except RequestError as error:
        assert str(error).startswith("vcluster: ")  # noqa: PT017 - the line may also be valid
        assert "\n" not in str(error)  # noqa: PT017
