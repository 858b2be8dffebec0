"""Fakes in memory for the agent's tests: a kernel, a hypervisor, an SBF and a host."""

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
