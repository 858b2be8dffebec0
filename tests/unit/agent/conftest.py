import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.fake_machine import FakeElementApi, FakeHypervisor, FakeKernel, FakeManagedHost
from support.kernel.mount_namespace import run_with_own_mounts
from support.kernel.network_namespaces import Run

from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.wanted import GuestWanted, Segment

T = TypeVar("T")
CLONE_NEWNET = 0x40000000


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def hypervisor() -> FakeHypervisor:
    return FakeHypervisor()


@pytest.fixture
def make_guest() -> Callable[..., GuestWanted]:
    def make(name: str = "g1", **changes: Any) -> GuestWanted:
        keys = {
            "image": "busybox",
            "memory_mb": 64,
            "cpus": 1,
            "mac": "02:00:00:00:00:01",
            "addresses": ["10.0.0.1/24"],
        }
        return GuestWanted.model_validate({"name": name, **keys, **changes})

    return make


@pytest.fixture
def make_segment(make_guest: Callable[..., GuestWanted]) -> Callable[..., Segment]:
    def make(
        cluster: str = "c1",
        vlan: int = 100,
        guests: tuple[str, ...] = (),
        port: str = "eth0",
        *,
        untagged: bool = False,
    ) -> Segment:
        guest_documents = tuple(make_guest(name) for name in guests)
        attachment = {"vlan": vlan, "port": port, "untagged": untagged}
        return Segment.model_validate({"id": cluster, "key": f"key-{cluster}", **attachment, "guests": guest_documents})

    return make


@pytest.fixture(scope="session")
def in_namespace() -> Run:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: the real kernel's bridges need root")

    def run(work: Callable[[], T]) -> T:
        with ThreadPoolExecutor(1, initializer=_unshare) as thread:
            return thread.submit(work).result()

    return run


@pytest.fixture(scope="session")
def unshare() -> Callable[[], None]:
    return _unshare


def _unshare() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot create a network namespace")
    # If br_netfilter is loaded, all these sysctls are nonzero in a new namespace.
    for path in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):
        path.write_text("0")


@pytest.fixture
def with_mounts() -> Run:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: file systems of the real kernel need root")
    return run_with_own_mounts


@pytest.fixture
def service() -> FakeElementApi:
    return FakeElementApi()


@pytest.fixture
def host() -> FakeManagedHost:
    return FakeManagedHost()


@pytest.fixture
def waits() -> list[float]:
    return []


class RecordingEvent(threading.Event):
    """An event whose ``wait`` returns immediately and records its timeout."""

    def __init__(self, waits: list[float]) -> None:
        super().__init__()
        self._slept = waits

    def wait(self, timeout: float | None = None) -> bool:
        self._slept.append(timeout or 0)
        return self.is_set()


@pytest.fixture
def stop() -> StopSignal:
    return StopSignal()


@pytest.fixture
def wake(waits: list[float]) -> RecordingEvent:
    return RecordingEvent(waits)


@pytest.fixture
def reconciler(
    service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, wake: RecordingEvent
) -> HostReconciler:
    """A reconciler that does not pause. ``waits`` records the requested pauses in seconds."""
    timing = ReconcileTiming(check_s=30, retry_first_s=0.5, retry_most_s=4)
    return HostReconciler("h1", service, host, stop, timing, wake, jitter=lambda: 0)
