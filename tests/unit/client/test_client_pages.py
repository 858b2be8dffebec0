"""Tests of lists that the Python API reads page by page, with a real SBF."""

from collections.abc import Iterator

import anyio
import pytest

from virtcloud import AsyncClient
from virtcloud.client.api import Client
from virtcloud.client.sbf import SbfClient
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet

KEYS = [f"c{number}" for number in range(5)]
HOSTS = [{"name": f"h{number}", "ports": ["eth0"]} for number in range(3)]
PORTS = [f"p{number}" for number in range(3)]
SWITCH = {"name": "sw", "ports": PORTS, "platform": "linux_bridge", "address": "127.0.0.1:1"}
TOPOLOGY = Topology.model_validate(
    {
        "name": "small",
        "sites": [{"name": "brno", "switches": [SWITCH], "hosts": HOSTS}],
        "links": [{"a": f"sw:p{number}", "b": f"h{number}:eth0"} for number in range(3)],
    }
)


@pytest.fixture
def client(sbf: str) -> Iterator[Client]:
    with SbfClient(sbf) as connected:
        connected.put_topology(TOPOLOGY)
        connected.put_pool("brno", Pool(vlans=VlanSet.parse("100-199")))
    with Client(sbf) as made:
        for number, key in enumerate(KEYS):
            made.create(key, hosts=[f"h{number % 3}"], owner="eva", deadline_s=600)
        yield made


def test_an_iteration_yields_each_cluster_once(client: Client) -> None:
    assert [cluster.key for cluster in client.iterate("eva", page_size=2)] == KEYS
    assert [cluster.key for cluster in client.iterate("eva", newest=True, page_size=1)] == KEYS[::-1]
    assert [cluster.key for cluster in client.iterate(element="h1", page_size=1)] == ["c1", "c4"]


def test_a_page_is_read_only_when_it_is_needed(client: Client) -> None:
    clusters = client.iterate(page_size=2)
    assert next(clusters).key == "c0"
    client.create("late", hosts=["h0"], owner="bob", deadline_s=600)
    assert [cluster.key for cluster in clusters] == [*KEYS[1:], "late"]


def test_the_asynchronous_client_yields_the_same_clusters(client: Client) -> None:
    async def read() -> list[str]:
        async with AsyncClient(client) as asynchronous:
            return [cluster.key async for cluster in asynchronous.iterate("eva", state="configuring", page_size=2)]

    assert anyio.run(read) == KEYS


def test_an_unknown_element_is_bad_input(client: Client) -> None:
    with pytest.raises(BadInput, match="element: expected the name of a known element, got h9"):
        list(client.iterate(element="h9"))


def test_pages_of_other_lists_contain_each_row_once(client: Client) -> None:
    sbf = client.sbf
    names = [view.name for page in sbf.element_pages(size=1) for view in page]
    assert (names, len(list(sbf.site_pages()))) == (["h0", "h1", "h2", "sw"], 1)
    rows = [row.id for page in sbf.audit_pages(who="root", size=2) for row in page]
    assert rows == sorted(set(rows))
    assert [row.id for page in sbf.audit_pages(newest=True, size=2) for row in page][-1] == min(rows)
