"""A :class:`World` with its console on a port of the loopback interface, for real browsers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import uvicorn

from sbf_service.console.app import add_console
from sbf_service.http.app import create_app
from sbf_service.store.elements import error_reports
from sbf_service.store.networks.traffic import record_traffic
from support.sbf_fakes.world import World, site, spec
from virtcloud.model.topology import Topology
from virtcloud.model.traffic import SegmentCounters, TrafficReport

SITES = {"brno": (3, 2), "praha": (2, 2), "plzen": (2, 1)}
"""The numbers of hosts at each switch of each site."""


@contextmanager
def running_console(world: World) -> Iterator[str]:
    app = add_console(create_app(world.service))
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.02)
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        world.service.change_feed.close()
        server.should_exit = server.force_exit = True
        thread.join(20)


def furnish_university(world: World) -> None:
    """Store three sites and five clusters. Each site has two switches.

    One host is dead, and therefore the VLAN ID of a deleted cluster is in quarantine. Also store traffic of the cluster
    ``climate-model``, and an error report of the host ``plzen-h2``.
    """
    world.furnish("100-139", university())
    world.put("climate-model", spec("brno-h1", "brno-h4", "praha-h1", "plzen-h2", owner="alice"))
    world.put("41822.pbs", spec("brno-h2", "praha-h3", owner="bob"))
    world.put("41830.pbs", spec("praha-h2", "plzen-h3", owner="carol"))
    world.put("course-networks", spec("brno-h5", "brno-h3", owner="alice"))
    world.put("41799.pbs", spec("praha-h4", "brno-h1", owner="carol"))
    world.settle()
    world.dead_hosts.add("praha-h4")
    world.delete("41799.pbs")
    world.settle()
    for _ in range(3):
        world.clock.advance(61)
        world.settle()
    with world.store.change() as unit:
        drain = world.service.settings.timing.drain
        message = "image debian12: its description is malformed: line 3: expected a size such as 2gb, got 'two'"
        error_reports.record_agent_error(unit, "plzen-h2", message, {}, drain)

    report_traffic(world, "climate-model", "brno-h1", "brno-h4", "praha-h1", "plzen-h2")


def report_traffic(world: World, key: str, *hosts: str) -> None:
    now = world.clock.now
    totals = dict.fromkeys(hosts, 0)
    for step in range(30, -1, -1):
        world.clock.now = now - timedelta(seconds=30 * step)
        for index, host in enumerate(hosts):
            totals[host] += 30 * (index + 1) * (40_000 + 30_000 * (step % 7))
            is_restarted = index == 2 and step < 12
            send_counters(world, key, host, f"eth0.100#{7 + is_restarted}", totals[host])


def send_counters(world: World, key: str, host: str, port: str, received: int) -> None:
    """Report the counters of one host. The number of sent bytes is a third of ``received``."""
    counters = SegmentCounters(
        network=world.view(key).id,
        port=port,
        received_bytes=received,
        sent_bytes=received // 3,
        received_frames=received // 800,
        sent_frames=received // 900,
    )
    with world.store.change() as unit:
        record_traffic(unit, host, TrafficReport(segments=(counters,)))


def university() -> Topology:
    sites, links = [], []
    for name, counts in SITES.items():
        hosts = [f"{name}-h{number}" for number in range(1, sum(counts) + 1)]
        switches = []
        for index, count in enumerate(counts, start=1):
            switch, below = f"{name}-sw{index}", [hosts.pop(0) for _ in range(count)]
            ports = [f"Gi1/0/{port}" for port in range(1, count + 1)]
            links += [{"a": f"{host}:eth0", "b": f"{switch}:{port}"} for host, port in zip(below, ports, strict=True)]
            up = ["Te1/1/1"] if index > 1 else ["Te1/1/1", "Te1/1/2", "Te1/1/3"]
            switches.append({"name": switch, "platform": "fake", "ports": [*ports, *up]})
        links.append({"a": f"{name}-sw1:Te1/1/1", "b": f"{name}-sw2:Te1/1/1"})
        described = site(name, sum(counts)) | {"switches": switches}
        attachments = [{"transport": "core", "port": f"{name}-sw1:Te1/1/2"}]
        attachments += [{"transport": "lambda", "port": f"{name}-sw1:Te1/1/3"}] if name != "plzen" else []
        sites.append(described | {"attachments": attachments})
    transports = [{"name": "core", "kind": "qinq", "s_tag": 2000}, {"name": "lambda", "kind": "direct"}]
    return Topology.model_validate({"name": "university", "transports": transports, "sites": sites, "links": links})
