"""The agent's tables in the kernel's packet filter: the guests' filters (`NftablesFilters`), and all others."""

import json
from typing import Any

from virtcloud.agent.network import libnftables
from virtcloud.agent.network.guest_filter_rules import FAMILY, TABLE
from virtcloud.agent.network.guest_filters import FilteredPort, render_table
from virtcloud.agent.network.observed_filters import ObservedFilters, parse_flagged_table, parse_table
from virtcloud.agent.network.owned_tables import OwnedTable
from virtcloud.model.errors import Refused, Unsafe

_UNREADABLE: dict[str, list[Any]] = {"nftables": []}
"""`KernelTables.read` returns this value if the kernel refuses to read a table. The value differs from each wanted
table."""
_NO_FILTER = ("not supported", "Invalid argument")
"""If a kernel has no nf_tables, the kernel's error message ends with one of these texts."""


class _FlaggedTableError(Refused):
    """A table has flags, for example ``dormant``. Such a table is not listed in JSON (`libnftables.has_flags`)."""


class NftablesFilters:
    """The table of the guests' filters, in the network namespace of the calling thread."""

    def read(self) -> ObservedFilters:
        """Return the observed table, or an empty ``ObservedFilters`` if the table is missing.

        ``faults`` contains the error if the library is missing or the kernel refuses to read the table.
        """
        try:
            return self._read()
        except Refused as error:
            return ObservedFilters(faults=(str(error),))

    def _read(self) -> ObservedFilters:
        if not _has_table():
            return ObservedFilters()
        try:
            return parse_table(_list_table(FAMILY, TABLE))
        except _FlaggedTableError:
            return parse_flagged_table(_run(f"list table {FAMILY} {TABLE}"))

    def remove(self) -> None:
        """Delete the table if the table exists and virtcloud created the table. Idempotent.

        Raise Refused if the kernel refuses the reading or the deletion.
        """
        if libnftables.is_installed() and not self._read().foreign:
            self.replace(())

    def replace(self, ports: tuple[FilteredPort, ...]) -> None:
        """Replace the table in one transaction. If ``ports`` is empty, delete the table. Idempotent.

        Raise Refused if the library is missing, or if the kernel refuses to read or to replace the table. Raise Unsafe
        if virtcloud did not create the existing table.
        """
        if self._read().foreign:
            raise Unsafe(
                f"this host has an nftables table '{FAMILY} {TABLE}' that virtcloud did not create; left unchanged. "
                f"Rename the table, or delete it: nft delete table {FAMILY} {TABLE}"
            )
        _run(render_table(ports))


class KernelTables:
    """The agent's tables except the table of the guests' filters, in the network namespace of the calling thread."""

    def read(self, family: str, name: str) -> Any:  # noqa: ANN401 - JSON
        """Return a table as ``nft --json list table`` prints it.

        Return None if the table or the library is missing, or if the kernel has no packet filter. If the kernel refuses
        the reading for another reason, return `_UNREADABLE`.
        """
        if not libnftables.is_installed():
            return None
        try:
            return _list_table(family, name) if _has_table(family, name) else None
        except Refused as error:
            return None if str(error).endswith(_NO_FILTER) else _UNREADABLE

    def replace(self, table: OwnedTable) -> None:
        """Replace the rules and sets of a table in one transaction. The counters keep their values.

        If the kernel refuses this change, for example because a hook differs, create the table again. The counters then
        start at 0. Raise Refused if the library is missing, or the kernel refuses the table.
        """
        try:
            _run(table.render(self.read(table.family, table.name)))
        except Refused:
            _run(table.render_removal() + table.render())

    def correct_sets(self, table: OwnedTable) -> bool:
        """Write the wanted addresses to a table's address sets, in one transaction. Return whether a set was changed.

        If the table is missing, return False. Raise Refused if the kernel refuses the change.
        """
        listing = self.read(table.family, table.name) if table.address_sets else None
        commands = table.render_set_changes(listing) if listing is not None else ""
        if commands:
            _run(commands)
        return bool(commands)

    def remove(self, family: str, name: str) -> None:
        """Delete a table if it exists. Raise Refused if the kernel refuses the reading or deletion."""
        if _has_table(family, name):
            _run(f"delete table {family} {name}")


def _has_table(family: str = FAMILY, name: str = TABLE) -> bool:
    return f"table {family} {name}" in _run(f"list tables {family}").splitlines()


def _list_table(family: str, name: str) -> Any:  # noqa: ANN401 - JSON
    command = f"list table {family} {name}"
    if libnftables.has_flags(_run(command, libnftables.TERSE_OUTPUT)):
        raise _FlaggedTableError(f"the table {family} {name} has flags")
    return json.loads(_run(command, libnftables.JSON_OUTPUT))


def _run(commands: str, output_flags: int = 0) -> str:
    try:
        return libnftables.run_commands(commands, output_flags)
    except OSError as error:
        raise Refused(str(error)) from error
