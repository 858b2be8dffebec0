import json
import pickle
import re
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from support.fake_machine.clusters import view
from support.fake_machine.script import Script

import virtcloud
from virtcloud import AsyncClient, Client, ClusterSpec, Guest, VirtcloudError
from virtcloud.client.cluster import Cluster
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import BadInput, TimedOut

ME = '{"name": "eva", "role": "user"}'


@pytest.fixture
def client(script: Script) -> Iterator[Client]:
    with Client(script.url, token="vc_secret") as connected:  # noqa: S106 - a token for tests
        yield connected


def test_the_names_of_the_api_are_listed() -> None:
    assert {"Client", "Cluster", "ClusterSpec", "Guest", "VirtcloudError"} <= set(dir(virtcloud))


def test_a_client_shows_its_address_and_no_token(client: Client, script: Script) -> None:
    assert repr(client) == f"<virtcloud.Client of {script.url}>"


def test_a_cluster_shows_its_owner_state_and_vlans(client: Client, script: Script) -> None:
    spec = ClusterSpec(owner="eva", hosts=("brno-h1",))
    script.answer(200, view("demo", spec, ClusterState.ACTIVE).model_dump_json())
    assert repr(client.get("demo")) == "<virtcloud.Cluster demo of eva: active, VLAN 100 at brno, VLAN 100 at praha>"


@pytest.mark.parametrize(
    "wrap", [lambda client: client, lambda client: client.sbf, AsyncClient], ids=("Client", "SbfClient", "AsyncClient")
)
def test_the_error_of_pickle_names_the_remedy(client: Client, script: Script, wrap: Callable[[Client], object]) -> None:
    remedy = f"create a client in each process, for example Client('{script.url}').get(key)"
    with pytest.raises(TypeError, match=re.escape(remedy)):
        pickle.dumps(wrap(client))


def test_the_error_of_pickling_a_cluster_names_the_remedy(client: Client, script: Script) -> None:
    script.answer(
        200, view("demo", ClusterSpec(owner="eva", hosts=("brno-h1",)), ClusterState.ACTIVE).model_dump_json()
    )
    cluster = client.get("demo")
    with pytest.raises(TypeError, match="pass the cluster's key instead"):
        pickle.dumps(cluster)


@pytest.mark.parametrize("method", ["run", "put", "get"])
def test_an_empty_list_of_guests_is_not_all_guests(client: Client, script: Script, method: str) -> None:
    script.answer(
        200, view("demo", ClusterSpec(owner="eva", hosts=("brno-h1",)), ClusterState.ACTIVE).model_dump_json()
    )
    with pytest.raises(BadInput, match="guests: expected names of guests, got none"):
        getattr(client.get("demo"), method)("/etc/os-release", guests=[])


def test_a_malformed_spec_raises_a_virtcloud_error() -> None:
    with pytest.raises(VirtcloudError) as raised:
        ClusterSpec(owner="Eva Nováková", hosts=("Brno",))
    assert [line.partition(": expected")[0] for line in str(raised.value).splitlines()] == [
        "ClusterSpec: owner",
        "hosts.0",
    ]


def test_a_text_instead_of_a_list_shows_the_list_syntax() -> None:
    with pytest.raises(BadInput) as raised:
        ClusterSpec(owner="eva", hosts="brno-h1")
    assert str(raised.value) == "ClusterSpec: hosts: expected a list such as ['brno-h1'], got the text 'brno-h1'"


def test_a_fault_within_a_guest_has_its_path() -> None:
    guests = [{"name": "n1", "host": "brno-h1", "image": "debian", "memory_mb": 1}]
    with pytest.raises(BadInput, match=r"^ClusterSpec: guests\.0\.memory_mb: expected"):
        ClusterSpec(owner="eva", guests=guests)
    with pytest.raises(BadInput, match=r"^Guest: memory_mb: expected"):
        Guest(name="n1", host="brno-h1", image="debian", memory_mb=1)


def test_the_default_owner_is_the_authenticated_user(client: Client, script: Script) -> None:
    spec = ClusterSpec(owner="eva", hosts=("brno-h1",))
    script.answer(200, ME)
    script.answer(201, view("demo", spec, ClusterState.CONFIGURING).model_dump_json())
    client.create("demo", hosts=["brno-h1"])
    assert json.loads(script.asked[-1][2])["spec"]["owner"] == "eva"


def test_a_spec_together_with_keys_is_rejected(client: Client, script: Script) -> None:
    with pytest.raises(BadInput, match="expected either a spec or its keys, got a spec and hosts"):
        client.create("demo", ClusterSpec(owner="eva", hosts=("brno-h1",)), hosts=["brno-h2"])
    assert script.asked == []


def test_a_failing_cluster_does_not_extend_the_timeout(client: Client, script: Script) -> None:
    spec, seconds = ClusterSpec(owner="eva", hosts=("brno-h1",)), count()
    states = [ClusterState.CONFIGURING] * 4 + [ClusterState.FAILING] * 16
    for state in states:
        failing = {"reason": "no VLAN ID is free"} if state is ClusterState.FAILING else {}
        script.answer(200, view("demo", spec, state).model_copy(update=failing).model_dump_json())
    cluster = Cluster(client.sbf, view("demo", spec, ClusterState.CONFIGURING), lambda: next(seconds))
    with pytest.raises(TimedOut, match=r"cluster demo is failing \(no VLAN ID is free\) after 30 s, not active"):
        cluster.wait_active(timeout=30)
    assert next(seconds) == pytest.approx(30, abs=4)
