"""The kernel, the packet filter, the disk and the threads of a simulated gateway."""

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from support.fake_machine import FakeKernel
from virtcloud.agent.network.guest_filters import FilteredPort, list_elements
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.network.owned_tables import OwnedTable, digest_rule
from virtcloud.model.errors import Refused

LIMIT_S: Final = 60.0


class KilledError(BaseException):
    """The end of the agent's process by SIGKILL, which the agent's code does not catch."""


class SimulatedKernel(FakeKernel):
    """A kernel that refuses what Linux refuses, and that removes 802.1Q interfaces together with their parent."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] = lambda: None
        self._last = 0
        super().__init__()
        self._act = act

    def put(self, **values: Any) -> int:
        self._act()
        if values["name"] in self.names:
            raise Refused(f"the kernel refused to create {values['name']}: File exists")
        tag = values.get("parent"), values.get("vlan")
        if tag[1] is not None and any((one.parent, one.vlan) == tag for one in self.by_index.values()):
            raise Refused("the kernel refused to create an interface: File exists")
        self._last += 1
        self.by_index[self._last] = KernelInterface(index=self._last, **values)
        return self._last

    def add_tap(self, name: str) -> int:
        return self.put(name=name, kind="tun")

    def set_hairpin(self, index: int) -> None:
        if self._find(index).master is None:
            raise Refused(f"the kernel refused to set the hairpin mode of {index}: Operation not supported")
        self._act()
        self.by_index[index] = replace(self.by_index[index], hairpin=True)

    def change(self, index: int, **values: Any) -> None:
        self._find(index)
        self._act()
        if "master" in values:
            values["master"] = values["master"] or None
            if values["master"] != self.by_index[index].master:
                values["hairpin"] = False
        super().change(index, **values)

    def disable_host_ip(self, index: int, name: str) -> None:
        self._find(index)
        self._act()
        super().disable_host_ip(index, name)

    def delete(self, index: int) -> None:
        self._act()
        self.remove(index)

    def remove(self, index: int) -> None:
        for child in [one.index for one in self.by_index.values() if one.parent == index]:
            self.remove(child)
        super().delete(index)

    def find(self, name: str) -> KernelInterface | None:
        return next((one for one in self.by_index.values() if one.name == name), None)

    def find_tap(self, name: str) -> int | None:
        tap = self.find(name)
        return tap.index if tap is not None else None

    def _find(self, index: int) -> KernelInterface:
        if index not in self.by_index:
            raise Refused(f"the kernel refused to change interface {index}: No such device")
        return self.by_index[index]


class SimulatedFilters(NftablesFilters):
    """The table of the guests' filters in memory."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.ports: tuple[FilteredPort, ...] = ()

    def read(self) -> ObservedFilters:
        return ObservedFilters(list_elements(self.ports))

    def replace(self, ports: tuple[FilteredPort, ...]) -> None:
        self._act()
        self.ports = ports


class SimulatedTables:
    """The kernel's other tables in memory, as JSON of libnftables. The class has the interface of `KernelTables`."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.present: dict[tuple[str, str], Any] = {}

    def read(self, family: str, name: str) -> Any:
        return self.present.get((family, name))

    def replace(self, table: OwnedTable) -> None:
        self._act()
        found: list[dict[str, Any]] = [{"table": {"family": table.family, "name": table.name}}]
        for name, chain in table.chains.items():
            kind, _, hook, *_, policy = chain.hook.replace(";", "").split()
            found.append({"chain": {"name": name, "type": kind, "hook": hook, "policy": policy}})
            found += [{"rule": {"chain": name, "comment": digest_rule(rule)}} for rule in chain.rules]
        self.present[table.family, table.name] = {"nftables": found}

    def remove(self, family: str, name: str) -> None:
        self._act()
        self.present.pop((family, name), None)


class TurnThread(threading.Thread):
    """A thread of the agent that runs only during `run_turn`."""

    def __init__(self, *, target: Callable[[], object], name: str, daemon: bool) -> None:
        super().__init__(name=name, daemon=daemon)
        self._work = target
        self.has_ended = False
        self._parked, self._resumed = threading.Event(), threading.Event()

    def start(self) -> None:
        super().start()
        assert self._parked.wait(LIMIT_S)

    def run(self) -> None:
        try:
            self._work()
        except KilledError:
            pass
        finally:
            self.has_ended = True
            self._parked.set()

    def park(self) -> None:
        """Wait for the next turn. The thread itself calls this method."""
        self._resumed.clear()
        self._parked.set()
        assert self._resumed.wait(LIMIT_S)

    def run_turn(self) -> None:
        if not self.has_ended:
            self._parked.clear()
            self._resumed.set()
            assert self._parked.wait(LIMIT_S)

    def join(self, timeout: float | None = None) -> None:
        self.run_turn()
        if self.has_ended:
            super().join(timeout)


@contextmanager
def observe_files(folder: Path, change: Callable[..., None]) -> Iterator[None]:
    """Call ``change`` before each change of a file or folder below ``folder`` in the block."""

    def observed(function: Callable[..., Any], is_change: Callable[..., bool], *, grows: bool) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(path, str | Path) and Path(path).is_relative_to(folder) and is_change(*arguments, **options):
                change(grows=grows)
            return function(path, *arguments, **options)

        return call

    def creates(flags: int, *_: Any, **_options: Any) -> bool:
        return bool(flags & os.O_CREAT)

    def writes(mode: str = "r", *_: Any, **_options: Any) -> bool:
        return mode[0] != "r"

    def always(*_: Any, **_options: Any) -> bool:
        return True

    with (
        patch.object(os, "open", observed(os.open, creates, grows=True)),
        patch.object(io, "open", observed(io.open, writes, grows=True)),
        patch.object(os, "mkdir", observed(os.mkdir, always, grows=True)),
        patch.object(os, "rename", observed(os.rename, always, grows=False)),
        patch.object(os, "unlink", observed(os.unlink, always, grows=False)),
    ):
        yield
