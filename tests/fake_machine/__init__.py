"""Fakes in memory for the agent's tests."""

from fake_machine.host import FakeGroups, FakeHypervisor, FakeKernel, FakeMounts, FakeRoots, FakeUplinkRecords
from fake_machine.reconciler import FakeElementApi, FakeManagedHost

__all__ = [
    "FakeElementApi",
    "FakeGroups",
    "FakeHypervisor",
    "FakeKernel",
    "FakeManagedHost",
    "FakeMounts",
    "FakeRoots",
    "FakeUplinkRecords",
]
