"""The addresses of the FQDNs of destinations, from regular queries of the gateway's own resolver.

After a restart, the recorded addresses are admitted before the resolver answers.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import remove_durably, write_durably
from virtcloud.agent.gateway import fqdn_program
from virtcloud.agent.gateway.fqdn_answers import (
    FqdnAnswer,
    FqdnRecord,
    describe_names,
    list_admitted,
    merge_answer,
)
from virtcloud.agent.host_services.server_processes import PACKAGE_ROOT
from virtcloud.agent.resolved_addresses import find_forbidden
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.gateway_access import Destination, Fqdn
from virtcloud.model.outside_use import ResolvedName
from virtcloud.model.values import PortName

INTERVAL_S: Final = 30.0
"""Seconds between two queries for the same name."""
LIMIT_S: Final = 5.0
"""Time limit in seconds for one run of `fqdn_program`, which resolves all names."""
MAX_IDLE_S: Final = 300.0
_ENVIRONMENT: Final = {"LOCALDOMAIN": ".", "MALLOC_ARENA_MAX": "1"}
"""Environment variables of `fqdn_program`.

``LOCALDOMAIN``: the resolver appends no search domain (resolv.conf(5)). ``MALLOC_ARENA_MAX``: all threads share one
heap, because the program's address space is limited.
"""
_RECORDS: Final = TypeAdapter(dict[Fqdn, FqdnRecord])


class RouteKernel(Protocol):
    """The operation of the kernel that the check of addresses needs."""

    def find_exit(self, address: str) -> str | None:
        """Return the interface of the route to an address: "" for an address of this host, None without a route."""


def resolve_names(names: Iterable[str]) -> dict[str, FqdnAnswer]:
    """Return the answers of the system's resolver by name. A name without an answer in time has a temporary error."""
    asked = list(names)
    missing = FqdnAnswer(error=f"the resolver did not answer within {LIMIT_S:g} s", is_temporary=True)
    try:
        output, errors = _run_program(json.dumps(asked))
    except OSError as error:
        output, errors = "", f"cannot start the resolver: {error.strerror}"
    if errors:
        missing = FqdnAnswer(error=f"the resolver failed: {errors.strip()[-200:]}", is_temporary=True)
    answers = dict.fromkeys(asked, missing)
    for line in output.splitlines():
        with suppress(json.JSONDecodeError):  # a killed program may have written only a part of its last line
            answer = json.loads(line)
            addresses = tuple(answer.get("addresses", ()))
            answers[answer["name"]] = FqdnAnswer(addresses, answer.get("error"), answer.get("is_temporary", False))
    return answers


def start_program() -> subprocess.Popen[str]:
    """Start `fqdn_program`. Raise OSError if the program cannot start."""
    code = f"import sys; sys.path.append({str(PACKAGE_ROOT)!r}); from {fqdn_program.__name__} import main; main()"
    pipe = subprocess.PIPE
    return subprocess.Popen(  # noqa: S603 - a module of this package
        [sys.executable, "-I", "-S", "-c", code],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env={"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT},
        cwd="/",
    )


def _run_program(text: str) -> tuple[str, str]:
    """Return the output and the error output of `fqdn_program`; at the time limit, the output so far and ""."""
    with start_program() as process:
        try:
            return process.communicate(text, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0], ""


class FqdnAddresses:
    """The addresses of the names in the latest wanted document. All methods are thread-safe."""

    def __init__(
        self,
        path: Path,
        open_kernel: Callable[[], AbstractContextManager[RouteKernel]],
        sbf: str = "",
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Use the records in the file ``path``, and resolve all names every ``interval_s`` seconds.

        ``sbf`` is the URL of SBF, whose addresses are not admitted. Until SBF's name was resolved once, no new
        addresses are admitted.
        """
        self._path = path
        self._open_kernel = open_kernel
        self._interval_s = interval_s
        self._sbf_host = (urlsplit(sbf).hostname or "") if sbf.startswith("http") else ""
        self._sbf_addresses: frozenset[str] = frozenset()
        self.apply: Callable[[], object] = lambda: None
        """A function that is called after each resolution of all names."""
        self.changed: Callable[[], object] = lambda: None
        """A function that is called after the first resolution, and after each change of addresses or errors."""
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._stopping = False
        self._wanted: dict[Fqdn, PortName] = {}
        """The names to resolve, each with the interface towards the outside."""
        self._records: dict[Fqdn, FqdnRecord] | None = None
        """The records by name, or None before the file was read."""

    def request(self, wanted: Mapping[Fqdn, PortName]) -> None:
        """Resolve the names in ``wanted`` from now on. Delete the records of all other names.

        Each value is the interface through which the gateway must reach the name's addresses.
        """
        with self._lock:
            former = self._load()
            self._records = {fqdn: record for fqdn, record in former.items() if fqdn in wanted}
            if self._wanted != wanted:
                self._wanted = dict(wanted)
                self._woken.set()
            if self._records != former:
                self._store()

    def list_admitted(self, destination: Destination) -> frozenset[str]:
        """Return the addresses of a destination's names to which guests may open connections."""
        with self._lock:
            return frozenset(list_admitted(destination, self._records or {}))

    def describe(self, destination: Destination) -> tuple[ResolvedName, ...]:
        """Return the addresses and faults of a destination's names, for reports."""
        with self._lock:
            return tuple(describe_names(destination, self._records or {}))

    def refresh(self) -> None:
        """Resolve all names once."""
        with self._lock:
            wanted = dict(self._wanted)
        if not wanted:
            return
        answers = dict(resolve_names({*wanted, *([self._sbf_host] if self._sbf_host else ())}))
        self._note_sbf(answers.get(self._sbf_host, FqdnAnswer()))
        if self._sbf_host and not self._sbf_addresses:
            error = f"the addresses of SBF are unknown: this gateway cannot resolve {self._sbf_host}"
            answers = dict.fromkeys(answers, FqdnAnswer(error=error, is_temporary=True))
        with self._lock, self._open_kernel() as kernel:
            former, now = self._records or {}, time.time()
            find_fault = cache(partial(self._find_fault, kernel))
            self._records = former | {
                fqdn: merge_answer(former.get(fqdn, FqdnRecord()), answers[fqdn], partial(find_fault, interface), now)
                for fqdn, interface in self._wanted.items()
                if fqdn in answers
            }
            if self._records != former:
                _log_changes(former, self._records)
                self._store()

    def start(self, start: StartSupervisedThread) -> None:
        """Start the thread that resolves the names."""

        def run(progress: ReportProgress) -> None:
            former: dict[Fqdn, FqdnRecord] | None = None
            while not self._stopping:
                self._woken.clear()
                try:
                    self.refresh()
                    self.apply()
                except VirtcloudError as error:
                    log.warning("fqdns_not_applied", error=error)
                if self._records != former:
                    former = self._records
                    self.changed()
                progress()
                self._woken.wait(self._interval_s)

        start("FQDNs of destinations", run, MAX_IDLE_S)

    def stop(self) -> None:
        """Request the end of the thread."""
        self._stopping = True
        self._woken.set()

    def _find_fault(self, kernel: RouteKernel, interface: PortName, address: str) -> str | None:
        """Return why an address is not admitted, or None. Admit an address without a route: no packet can reach it."""
        if fault := find_forbidden(address):
            return fault
        if address in self._sbf_addresses:
            return f"{address} is an address of SBF"
        exit_ = kernel.find_exit(address)
        if exit_ == "":
            return f"{address} is an address of this gateway"
        return f"{address} is reached by {exit_}, not by {interface}" if exit_ not in {None, interface} else None

    def _note_sbf(self, answer: FqdnAnswer) -> None:
        """Add SBF's addresses. Addresses of earlier answers stay, because a DNS server may vary its answers."""
        self._sbf_addresses |= set(answer.addresses)

    def _load(self) -> dict[Fqdn, FqdnRecord]:
        if self._records is not None:
            return self._records
        try:
            return _RECORDS.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:
            log.warning("fqdn_records_unreadable", file=self._path, error=error)
            return {}

    def _store(self) -> None:
        try:
            if self._records:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_durably(self._path, _RECORDS.dump_json(self._records))
            else:
                remove_durably(self._path)
        except OSError as error:
            log.warning("fqdn_records_not_written", file=self._path, error=error)


def _log_changes(former: Mapping[Fqdn, FqdnRecord], present: Mapping[Fqdn, FqdnRecord]) -> None:
    for fqdn, record in present.items():
        old = former.get(fqdn, FqdnRecord())
        if record.addresses.keys() != old.addresses.keys():
            log.info("fqdn_resolved", fqdn=fqdn, addresses=", ".join(sorted(record.addresses)) or "none")
        if record.error is not None and record.error != old.error:
            log.warning("fqdn_not_resolved", fqdn=fqdn, error=record.error)
