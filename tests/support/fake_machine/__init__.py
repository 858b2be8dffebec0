"""Fakes in memory for the agent's tests."""

from support.fake_machine.host import FakeGroups, FakeHypervisor, FakeKernel, FakeMounts, FakeRoots, FakeUplinkRecords
from support.fake_machine.reconciler import FakeElementApi, FakeManagedHost

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
