"""Interfaces in memory."""

from dataclasses import replace
from typing import Any

from virtcloud.agent.ports import Link, Voice

FRESH = Voice(settings={"ipv6/addr_gen_mode": "0", "ipv6/disable_ipv6": "0"})
HUSHED = Voice(settings={"ipv6/addr_gen_mode": "1", "ipv6/disable_ipv6": "1"})


class FakeKernel:
    """Interfaces in memory; it notes every name that was deleted."""

    def __init__(self) -> None:
        """Begin with an uplink, eth0."""
        self.by_index: dict[int, Link] = {}
        self.deleted: list[str] = []
        self.changes = 0
        self.filtering: tuple[str, ...] = ()
        self.voices: dict[int, Voice] = {}
        self.put(name="eth0", up=True)

    def put(self, **values: Any) -> int:  # noqa: ANN401 - a link's fields
        """Put an interface there, as somebody else would, and give its index."""
        index = max(self.by_index, default=0) + 1
        self.by_index[index] = Link(index=index, **values)
        return index

    def named(self, name: str) -> Link:
        """Give the interface of that name."""
        return next(link for link in self.by_index.values() if link.name == name)

    @property
    def names(self) -> set[str]:
        """Give all names."""
        return {link.name for link in self.by_index.values()}

    def links(self) -> list[Link]:
        """Give all interfaces."""
        return list(self.by_index.values())

    def add_vlan(self, name: str, parent: Link, vlan: int) -> int:
        """Create a tagged interface."""
        return self.put(name=name, kind="vlan", parent=parent.index, vlan=vlan, mtu=parent.mtu)

    def add_bridge(self, name: str) -> int:
        """Create a bridge."""
        return self.put(name=name, kind="bridge")

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - a link's fields
        """Change fields."""
        self.changes += 1
        self.by_index[index] = replace(self.by_index[index], **values)

    def filters(self) -> tuple[str, ...]:
        """Give the sysctls that are set."""
        return self.filtering

    def unfilter(self, index: int) -> None:
        """Reset a bridge's own options."""
        self.by_index[index] = replace(self.by_index[index], filtered=False)

    def hush(self, index: int, name: str) -> None:
        """Keep the host off it."""
        assert self.by_index[index].name == name
        self.by_index[index] = replace(self.by_index[index], quiet=True)
        self.voices[index] = HUSHED

    def voice(self, name: str | None) -> Voice:
        """Give how the host speaks there."""
        return self.voices.get(self.named(name).index, FRESH) if name else FRESH

    def speak(self, index: int, name: str, voice: Voice) -> None:
        """Let the host on it again."""
        assert self.by_index[index].name == name
        self.by_index[index] = replace(self.by_index[index], quiet=voice == HUSHED)
        self.voices[index] = voice

    def delete(self, index: int) -> None:
        """Delete it; its ports are free then."""
        gone = self.by_index.pop(index, None)
        if gone:
            self.deleted.append(gone.name)
        for one in self.by_index.values():
            if one.master == index:
                self.by_index[one.index] = replace(one, master=None)
