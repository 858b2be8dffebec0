"""Reads and changes tables of the kernel's packet filter by libnftables.

`namespace_program` also uses the packet filter, but without this module.
"""

import ctypes
import json
import socket
from typing import Any, Final

from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.network.guest_filter_rules import FAMILY, TABLE
from virtcloud.agent.network.guest_filters import FilteredPort, render_table
from virtcloud.agent.network.observed_filters import ObservedFilters, parse_flagged_table, parse_table
from virtcloud.agent.network.owned_tables import OwnedTable
from virtcloud.model.errors import Refused, Unsafe

LIBRARY = "libnftables.so.1"
REMEDY = "apt-get install libnftables1 (Debian), dnf install nftables (RHEL)"
_UNREADABLE: dict[str, list[Any]] = {"nftables": []}
"""`KernelTables.read` returns this value if the kernel refuses to read a table. The value differs from each wanted
table."""
_NO_FILTER = ("not supported", "Invalid argument")
"""If a kernel has no nf_tables, the kernel's error message ends with one of these texts."""
NETLINK_NETFILTER: Final = 12  # linux/netlink.h
_JSON_OUTPUT = 1 << 4
"""NFT_CTX_OUTPUT_JSON (nftables/libnftables.h)."""


class _NoJsonError(Refused):
    """libnftables printed no JSON, because a table has flags.

    libnftables 1.0.6 (Debian 12) reads freed memory when it prints a single flag, for example ``dormant``, in JSON.
    """


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
        except _NoJsonError:
            return parse_flagged_table(_run(f"list table {FAMILY} {TABLE}"))

    def remove(self) -> None:
        """Delete the table if the table exists and virtcloud created the table. Idempotent.

        Raise Refused if the kernel refuses the reading or the deletion.
        """
        if find_library() and not self._read().foreign:
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
        if not find_library():
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


def find_library() -> bool:
    """Return whether libnftables is installed."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def _has_table(family: str = FAMILY, name: str = TABLE) -> bool:
    return f"table {family} {name}" in _run(f"list tables {family}").splitlines()


def _list_table(family: str, name: str) -> Any:  # noqa: ANN401 - JSON
    """Return a table as ``nft --json list table`` prints it. Raise Refused on failure."""
    output = _run(f"list table {family} {name}", _JSON_OUTPUT)
    try:
        return json.loads(output)
    except ValueError as error:
        raise _NoJsonError(f"libnftables printed no JSON for the table {family} {name}, which has flags") from error


def _run(commands: str, output_flags: int = 0) -> str:
    """Run commands, and return their output. Raise Refused on failure."""
    library = _load_library()
    _check_netlink()
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    try:
        library.nft_ctx_output_set_flags(context, output_flags)
        library.nft_ctx_buffer_output(context)
        library.nft_ctx_buffer_error(context)
        if library.nft_run_cmd_from_buffer(context, commands.encode()):
            lines = library.nft_ctx_get_error_buffer(context).decode(errors="replace").splitlines()
            raise Refused(f"the kernel refused the packet filter: {lines[0] if lines else 'no reason'}")
        return str(library.nft_ctx_get_output_buffer(context).decode(errors="replace"))
    finally:
        library.nft_ctx_free(context)


def _check_netlink() -> None:
    """Raise Refused if no netlink socket can be opened, for example because this process has too many open files.

    Without a netlink socket, libnftables would call the C function ``exit``, and so end this process.
    """
    with refuse_os_errors("open a netlink socket for the packet filter"):
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER).close()


def _load_library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise Refused(f"the filters of guests need {LIBRARY}, which is missing: {REMEDY}") from error
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    return library
