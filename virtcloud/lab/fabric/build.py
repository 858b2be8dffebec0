"""Creates a plan's nodes, cables and services in the kernel of this process."""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from virtcloud.lab.fabric import node_power, nodes
from virtcloud.lab.fabric.events import EventLog
from virtcloud.lab.fabric.node_init import run_batch
from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle
from virtcloud.lab.fabric.plan import FabricPlan, veth_line
from virtcloud.lab.fabric.service_control import ServiceControl
from virtcloud.lab.fabric.zygote import Zygote

WITHOUT_REAPING = os.WEXITED | os.WNOHANG | os.WNOWAIT
"""Options of waitid(2): report an ended child without waiting, and leave the child to a later waitpid(2)."""
T = TypeVar("T")


class Fabric:
    """The running nodes and services of a plan. Call ``connect``, then ``serve``."""

    def __init__(self, plan: FabricPlan, state: str, events: EventLog) -> None:
        """Fork the first processes of all nodes. ``state`` is the lab's folder.

        Start no thread before this call, because a process with threads must not fork.
        """
        logs, groups = Path(state, "log"), nodes.lab_cgroup(state)
        self._plan = plan
        self._events = events
        self._zygote = _create_zygote(plan)
        self._power = threading.Lock()
        with events.step("nodes"):
            for node in plan.nodes:
                node_power.create_disk(node)
            self.nodes = {node.name: nodes.start_node(node, groups) for node in plan.nodes}
            for handle in self.nodes.values():
                nodes.wait_until_set_up(handle)
        self.services = {
            (node.name, service.name): ServiceControl(
                self.nodes[node.name], service, logs / f"{node.name}.{service.name}.log", self._zygote
            )
            for node in plan.nodes
            for service in node.services
        }

    def connect(self) -> None:
        """Create the cables, and the interfaces of every node."""
        with self._events.step("network"):
            pids = {name: handle.pid for name, handle in self.nodes.items()}
            cables = tuple(veth_line(cable, pids) for cable in self._plan.cables)
            error = run_batch("ip", (*self._plan.before, *cables, *self._plan.after))
            if error:
                raise NodeFailed(f"the lab's network: {error}")
            for handle in self.nodes.values():
                handle.listen()
            if self._zygote:
                self._zygote.listen()
            run_in_threads(NodeHandle.network, self.nodes.values())

    def serve(self) -> None:
        """Start all services: different nodes in parallel, and the services of one node one after the other."""
        run_in_threads(self._serve_node, [node.name for node in self._plan.nodes if node.services])

    def power_off(self, name: str) -> None:
        """Simulate a power failure of a node. Idempotent."""
        with self._power:
            node_power.power_off(self.nodes[name], self._ports(name))

    def power_on(self, name: str) -> None:
        """Boot a node, start all its services in parallel, and wait until the services are ready. Idempotent."""
        with self._power:
            node_power.power_on(self.nodes[name], self._ports(name))
            services = [control for (node, _), control in self.services.items() if node == name]
            run_in_threads(ServiceControl.start, services)

    def reap(self, kernel: int) -> None:
        """Reap ended orphans, but not the process ``kernel`` (User-mode Linux), which another thread reaps.

        Do nothing while a node's power is being switched: :mod:`subprocess` must reap the programs that switch the
        power.
        """
        if not self._power.acquire(blocking=False):
            return
        try:
            with suppress(ChildProcessError):  # there is no child
                while (ended := os.waitid(os.P_ALL, 0, WITHOUT_REAPING)) and ended.si_pid != kernel:
                    os.waitpid(ended.si_pid, os.WNOHANG)
        finally:
            self._power.release()

    def _ports(self, name: str) -> list[str]:
        cables = self._plan.cables
        return [
            *(cable.port for cable in cables if cable.node == name),
            *(cable.peer_port for cable in cables if cable.peer_node == name),
        ]

    def _serve_node(self, name: str) -> None:
        for service in self.nodes[name].node.services:
            with self._events.step(f"{name} {service.name}"):
                self.services[name, service.name].start()


def _create_zygote(plan: FabricPlan) -> Zygote | None:
    services = [service for node in plan.nodes for service in node.services if service.module]
    modules = sorted({name for service in services for name in (service.module, *service.imports)})
    return Zygote(tuple(modules)) if modules else None


def run_in_threads(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Call ``work`` for each item in a separate thread. Raise the first error after all calls have ended."""
    errors: list[Exception] = []

    def call(item: T) -> None:
        try:
            work(item)
        except Exception as error:  # noqa: BLE001 - the waiting thread raises this error below
            errors.append(error)

    threads = [threading.Thread(target=call, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
