"""Tests of the check of guests' user data. Errors name the guest."""

import time

import pytest
from pydantic import ValidationError

from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.errors import BadInput
from virtcloud.model.guest_spec import Guest
from virtcloud.model.user_data import MAX_DEPTH, _find_fault, check_user_data

MERGED = "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30))


@pytest.mark.parametrize(
    "text", ["#cloud-config\nruncmd: [ls]\n", "#cloud-config\r\n{a: 1}", "#cloud-config\n# x\na: !x 1"]
)
def test_a_cloud_config_is_accepted(text: str) -> None:
    assert Guest.model_validate({"name": "g1", "host": "h1", "image": "i", "user_data": text}).user_data == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\n", "got another first line"),
        ("#!/bin/sh\nls\n", "got another first line"),
        ("#cloud-config-archive\na: 1\n", "got another first line"),
        ("#cloud-config\n", "got no keys"),
        ("#cloud-config\n- a\n", "got a list"),
        ("#cloud-config\nhostname\n", "got text"),
        ("#cloud-config\na: [\n", "got no YAML in line 3: "),
        ("#cloud-config\na: 1\n---\nb: 2\n", "got no YAML in line 3: "),
        ("#cloud-config\na: \x00\n", "got no YAML: bad character"),
        ('#cloud-config\na: "\\UFFFFFFFF"\n', "got no YAML in line 2: expected the code of a character"),
        ("#cloud-config\n" + "[" * 5000, "got more than 50 nested levels"),
        ("#cloud-config\na: " + "x" * 16384, "expected at most 16384 bytes, got 16401"),
    ],
)
def test_any_other_text_is_refused_with_the_guests_name(text: str, fault: str) -> None:
    with pytest.raises(BadInput) as raised:
        check_user_data(text, "guest g1")
    assert str(raised.value).startswith("guest g1: user_data: expected ")
    assert fault in str(raised.value)


def test_merge_keys_do_not_expand() -> None:
    started = time.process_time()
    check_user_data(f"#cloud-config\na0: &a0 {{x: 1}}\n{MERGED}\n", "guest g1")
    assert time.process_time() - started < 5


def test_the_same_user_data_of_many_guests_is_parsed_once() -> None:
    text = "#cloud-config\n" + "".join(f"key{number}: [1, {{a: b}}]\n" for number in range(600))
    parsed = _find_fault.cache_info().misses
    for number in range(100):
        check_user_data(text, f"guest g{number}")
    assert _find_fault.cache_info().misses == parsed + 1


def request_with(texts: list[str]) -> dict[str, object]:
    guests = [{"name": f"g{n}", "host": "h1", "image": "i", "user_data": text} for n, text in enumerate(texts, 1)]
    return {"spec": {"owner": "alice", "guests": guests}}


def test_much_distinct_user_data_is_refused_before_it_is_parsed() -> None:
    texts = [f"#cloud-config\na: {number:0100}\n" for number in range(1200)]
    parsed = _find_fault.cache_info().misses
    with pytest.raises(
        ValueError, match="expected at most 131072 bytes in the different texts of all guests, got 141600"
    ):
        ClusterRequest.model_validate(request_with(texts))
    assert _find_fault.cache_info().misses == parsed


def test_equal_user_data_counts_once() -> None:
    texts = ["#cloud-config\na: " + "x" * 1000] * 1000
    assert len(ClusterRequest.model_validate(request_with(texts)).spec.guests) == 1000


@pytest.mark.parametrize("guests", [None, "g1", ["g1"], [{"user_data": []}], [{"user_data": {}}]])
def test_guests_of_another_form_are_refused_by_the_parser(guests: object) -> None:
    with pytest.raises(ValidationError, match=r"spec.guests"):
        ClusterRequest.model_validate({"spec": {"owner": "alice", "guests": guests}})


def test_stored_specs_may_have_more_user_data() -> None:
    """A cluster that an earlier version of SBF stored must stay readable."""
    texts = [f"#cloud-config\na: {number:0100}\n" for number in range(1200)]
    assert len(ClusterSpec.model_validate(request_with(texts)["spec"]).guests) == 1200


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1])
def test_only_deeper_levels_than_the_limit_are_refused(levels: int) -> None:
    text = "#cloud-config\na: " + "[" * (levels - 1) + "1" + "]" * (levels - 1)
    assert ("nested levels" in str(_find_fault(text))) == (levels > MAX_DEPTH)
