"""Detection of a reboot of this host, after which the host lacks its confirmed configuration.

The kernel has a new boot ID after each boot (random(4)). The agent records the boot ID in ``<state>/boot`` when it has
reported drift, or has found no drift on the whole host. If the recorded boot ID differs from the present boot ID, the
host was rebooted since the record was written.
"""

from pathlib import Path

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.model.errors import Refused

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostBoot:
    """The present and the recorded boot ID of this host."""

    def __init__(self, record: Path, boot_id: Path = BOOT_ID) -> None:
        """Read the present boot ID, and the recorded boot ID in the file ``record``."""
        self._record = record
        self._present = boot_id.read_text().strip()
        self._recorded = record.read_text(errors="replace").strip() if record.exists() else None
        self._reported = self._recorded

    @property
    def is_unreported(self) -> bool:
        """Whether the host was rebooted since the record, and this process has not reported the reboot.

        Without a record, the value is False.
        """
        return self._reported not in {None, self._present}

    def record_report(self) -> None:
        """Record the present boot ID. Idempotent.

        Raise Refused if the file is not writable. Even after this error, this process regards the reboot as reported,
        and the next call tries again to write the file.
        """
        self._reported = self._present
        if self._recorded == self._present:
            return
        with refuse_os_errors(f"record the host's boot in {self._record}"):
            self._record.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._record, f"{self._present}\n".encode())
        self._recorded = self._present


def record_boot(boot: HostBoot | None, element: str) -> None:
    """Record that a reboot was reported. Without the record, a restarted agent reports the same reboot again.

    If the record cannot be written, only log the error: a host with a full disk must be reconciled nevertheless.
    """
    try:
        if boot is not None:
            boot.record_report()
    except Refused as error:
        log.warning("boot_not_recorded", element=element, error=error)
