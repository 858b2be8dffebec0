"""Records of uplinks in memory."""

from virtcloud.agent.ports import Found


class FakeUplinks:
    """Records in memory."""

    def __init__(self) -> None:
        """Begin with none."""
        self.by_name: dict[str, Found] = {}

    def all(self) -> list[Found]:
        """Give all."""
        return list(self.by_name.values())

    def record(self, found: Found) -> None:
        """Keep one."""
        self.by_name[found.uplink] = found

    def forget(self, uplink: str) -> None:
        """Remove one."""
        self.by_name.pop(uplink, None)
