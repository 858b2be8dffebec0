"""Tests of the import from NetBox, and of the NetBox emulator, with recorded answers of a real NetBox."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.programs.http_answers import HttpAnswer, HttpRequest, answer_json, serve_answers
from support.programs.netbox_emulator import LISTS, TOKEN, EmulatedNetBox

from virtcloud.netbox.merging import NetBoxMerge, merge
from virtcloud.netbox.reading import read_netbox
from virtcloud.netbox.settings import NetBoxFile
from virtcloud.netbox.translation import translate

RECORDING = Path(__file__).parents[2] / "recordings/netbox/4.6.8.json"
ANSWERS = json.loads(RECORDING.read_text(encoding="utf-8"))
ROLES = {"switch_roles": ["access-switch", "core-switch"], "host_roles": ["server"]}


def request_key(path: str) -> tuple[str, str]:
    parameters = parse_qs(urlsplit(path).query)
    return urlsplit(path).path, str(sorted((key, sorted(parameters[key])) for key in parameters if key != "limit"))


PLAYED = {request_key(one["path"]): one["body"] for one in ANSWERS if one["status"] == 200}


def play(request: HttpRequest) -> HttpAnswer:
    return answer_json(200, PLAYED[request_key(request.path)])


@pytest.fixture(scope="module")
def merged() -> Iterator[NetBoxMerge]:
    with serve_answers(play) as url:
        file = NetBoxFile.model_validate({"url": url, "sites": ["ostrava", "praha"], **ROLES})
        yield merge(translate(file, read_netbox(file)), None)


def test_cables_panels_aggregates_modules_and_stacks_become_links(merged: NetBoxMerge) -> None:
    assert {(link.a, link.b) for link in merged.topology.links} == {
        ("ostrava-h1:eth0", "ostrava-sw1:Gi1/0/1"),  # the cable passes two patch panels
        ("ostrava-h2:eth0", "ostrava-sw2:Gi1/0/5"),
        ("ostrava-sw1:Po1", "ostrava-sw2:Po1"),
        ("ostrava-sw1:Te1/1/1", "ostrava-sw2:Te1/1/1"),  # the interface belongs to a module
        ("ostrava-sw2:Gi1/0/20", "ostrava-sw9:Gi1/0/1"),
        ("praha-h1:eth0", "praha-sw1:Gi2/0/1"),  # the port is on the second member of the stack praha-sw1
    }


def test_pools_exclude_vlans_in_use(merged: NetBoxMerge) -> None:
    assert {site: str(vlans) for site, vlans in merged.pools.items()} == {
        "ostrava": "100-109,111-119,200-204",
        "praha": "300",
    }


def test_each_unusable_object_is_named_in_a_note(merged: NetBoxMerge) -> None:
    assert [note.partition(": ")[0] for note in merged.notes] == [
        "device '9th floor' (NetBox id 5)",
        "device '' (NetBox id 6)",
        "interface 'odd port name' of ostrava-sw2",
        "port ostrava-sw2:Gi1/0/30",
        "switch ostrava-sw8",
        "ostrava-sw8",
    ]


def list_fields(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {field for key, part in value.items() for field in list_fields(part, f"{path}.{key}")}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {field for part in value for field in list_fields(part, path)}
    return {f"{path}={type(value).__name__}"} if value not in (None, "", [], {}) else set()


def test_the_emulator_has_only_fields_of_netbox() -> None:
    netbox = EmulatedNetBox()
    site = netbox.add_site("ostrava")
    switch = netbox.add_device(site, "sw1", "access-switch", platform="simulated", address="192.0.2.10/24")
    first, second = (netbox.add_interface(switch, name, lag=netbox.add_interface(switch, "Po1")) for name in "ab")
    netbox.connect(first, second, by_panel=True)
    netbox.add_vlan(110, group=netbox.add_group(site, [100, 119]), site=site, tags=("virtcloud",))
    for path, kind in LISTS.items():
        known = [body["results"] for (found, _), body in PLAYED.items() if found == path]
        assert (
            list_fields(list(netbox.rows[kind].values())) - list_fields([row for rows in known for row in rows])
            == set()
        )


@pytest.mark.parametrize(
    ("path", "token", "denied"),
    [
        ("/api/dcim/sites/", TOKEN, "sites"),
        ("/api/dcim/sites/", "f" * 40, ""),
        ("/api/dcim/sites/", "nbt_wrong.token", ""),
        ("/api/dcim/devices/?role=no-such-role", TOKEN, ""),
    ],
)
def test_the_emulator_refuses_as_netbox_does(path: str, token: str, denied: str) -> None:
    netbox = EmulatedNetBox(denied={denied})
    request = HttpRequest("GET", path, {"authorization": f"{'Bearer' if '.' in token else 'Token'} {token}"}, b"")
    answer = netbox.answer(request)
    assert (answer.status, json.loads(answer.body)) in [(one["status"], one["body"]) for one in ANSWERS]
