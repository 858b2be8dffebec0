from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.emulators.edge_bench import (
    TRANSPORTS,
    EdgeBench,
    edge_driver_for,
    emulate_edge,
    make_ready,
)

from virtcloud.model.transport import Transport
from virtcloud.model.values import PortName

MakeBench = Callable[..., EdgeBench]


@pytest.fixture
def make_edge_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:

        def make(platform: str, kind: str, *, read_timeout: float = 5, **options: object) -> EdgeBench:
            device = stack.enter_context(emulate_edge(platform, **options))
            transport = Transport.model_validate({"name": kind, **TRANSPORTS[kind]})
            ports = (PortName(device.port_names[1]), PortName(device.port_names[2]))
            make_ready(device, *ports)
            driver = edge_driver_for(device, transport, *ports, read_timeout=read_timeout)
            stack.callback(driver.close)
            return EdgeBench(device, driver, transport, ports)

        yield make
