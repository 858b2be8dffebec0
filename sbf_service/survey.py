"""A read-only survey of a site's switches, without SBF: the program that ``virtcloud site import`` runs.

The program reads a request as JSON from standard input: other users can see arguments, and the request may contain
names of secrets. The program writes the survey as JSON to standard output. It changes no configuration and saves none.
Exit code 0: the program has written a survey, even if some switches could not be read. Exit code 2: bad input; the
program has contacted no switch.
"""

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol, Self, runtime_checkable

from pydantic import Field, model_validator

from sbf_service.command_options import report_bad_input
from sbf_service.credential_settings import Credential
from sbf_service.device_credentials import make_login
from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.site_survey import list_port_vlans, make_site_survey
from sbf_service.domain.survey_draft import PortSurvey, SwitchSurvey
from sbf_service.drivers.contract import ReadsNeighbours, SwitchDriver, SwitchPlatform
from sbf_service.drivers.device_errors import LoginRefused, UnknownHostKey
from sbf_service.drivers.registry import find_switch_platform
from sbf_service.drivers.switch.dialect import SwitchReading
from sbf_service.drivers.switch.observed_state import derive_port_use
from sbf_service.drivers.transport.device_session import RETRIED
from sbf_service.settings import ServiceSettings, ServiceTiming, read_settings
from virtcloud.model.document import Document
from virtcloud.model.element import Switch, find_duplicates
from virtcloud.model.errors import BadInput, ElementError, Refused, Unreachable, Unsafe, VirtcloudError
from virtcloud.model.port_use import AGGREGATED
from virtcloud.model.site_survey import SiteSurvey, SurveyRequest
from virtcloud.model.values import DeviceAddress, Name, PortName
from virtcloud.model.yaml_document import read_document

READERS = 16
LIMIT_S = 180.0
"""The time limit of a conversation with one switch, in seconds."""
ANY_PORT = PortName("any")


@runtime_checkable
class ReadsWholeSwitch(Protocol):
    """A driver that can read all VLANs and ports, including unmanaged VLANs and ports."""

    def read_all(self) -> SwitchReading:
        """Read the whole switch. Change nothing."""


class SwitchToSurvey(Document):
    """A switch in a :class:`SurveyFile`: its address, its platform, and the name of its credential."""

    name: Name
    address: DeviceAddress
    platform: str
    credential: Name
    ports: tuple[PortName, ...] = ()
    """Ports that are in the draft of the topology even if LLDP shows no neighbour on these ports."""

    @property
    def switch(self) -> Switch:
        """The switch as an element."""
        ports = self.ports or (ANY_PORT,)
        return Switch(
            name=self.name, ports=ports, platform=self.platform, address=self.address, credential=self.credential
        )


class SurveyFile(Document):
    """The file that ``virtcloud site import`` reads: a site, its switches, and credentials."""

    site: Name
    switches: Annotated[tuple[SwitchToSurvey, ...], Field(min_length=1)]
    credentials: dict[Name, Credential] = Field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    """Patterns of the names of hosts, such as `node*`.

    LLDP neighbours with such a name become hosts in the draft.
    """

    @model_validator(mode="after")
    def _check_duplicates(self) -> Self:
        for name in find_duplicates([switch.name for switch in self.switches]):
            raise BadInput(f"expected each switch to have its own name, got {name} twice", ("switches",))
        names: dict[tuple[str, int | None], list[str]] = {}
        for switch in self.switches:
            names.setdefault((switch.address.host.lower(), switch.address.port), []).append(switch.name)
        for index, switch in enumerate(self.switches):
            same = names[switch.address.host.lower(), switch.address.port]
            if len(same) > 1:
                raise BadInput(
                    f"expected each switch to have its own address, got {switch.address} for {' and '.join(same)}: "
                    "correct the address, or list the switch once",
                    ("switches", index, "address"),
                )
        return self


def survey_site(request: SurveyRequest) -> SiteSurvey:
    """Read all switches that the request's file lists, and return the survey.

    For bad input, raise BadInput before the first reading.
    """
    file = read_document(request.text, request.source, SurveyFile)
    settings = _merge_settings(request, file)
    platforms = {entry.name: find_switch_platform(entry.switch) for entry in file.switches}
    for entry in file.switches:
        if entry.credential not in settings.credentials:
            known = ", ".join(sorted(settings.credentials)) or "none"
            expected = f"expected a known credential ({known}), got {entry.credential}"
            raise BadInput(
                f"{request.source}: switch {entry.name}: {expected}: add it to `credentials` in the file, or "
                "name the file with SBF's settings: --settings"
            )
    read = partial(_survey_switch, settings=settings, platforms=platforms)
    with ThreadPoolExecutor(max_workers=READERS) as pool:
        surveys = list(pool.map(read, file.switches))

    def canonical(element: Name, port: str) -> str:
        return platforms[element].port(port) if element in platforms else port.strip()

    return make_site_survey(file.site, surveys, file.hosts, canonical, request.pool_size)


def _merge_settings(request: SurveyRequest, file: SurveyFile) -> ServiceSettings:
    known = {} if request.settings is None else read_settings(Path(request.settings)).credentials
    timing = ServiceTiming(read_timeout=request.timeout_s)
    return ServiceSettings(credentials={**known, **file.credentials}, timing=timing)


def _survey_switch(
    entry: SwitchToSurvey, settings: ServiceSettings, platforms: dict[Name, SwitchPlatform]
) -> SwitchSurvey:
    survey = SwitchSurvey(entry.switch, listed_ports=entry.ports, reserved=platforms[entry.name].capabilities.reserved)
    try:
        login = make_login(entry.switch, settings)
        login.cancel_scope.allow(time.monotonic() + LIMIT_S, f"the reading took longer than {LIMIT_S:g} s")
        driver = platforms[entry.name].driver(login)
    except VirtcloudError as error:
        return replace(survey, is_read=False, fault=str(error))
    try:
        survey = replace(survey, is_read=False)
        survey = _add_reading(survey, _read_all(driver, entry))
        return replace(survey, neighbours=_read_neighbours(driver, entry, survey))
    except Unreachable as error:
        remedy = (
            f"check the address {entry.address}, the platform {entry.platform}, the credential {entry.credential}, and "
            "the network to the switch"
        )
        return replace(survey, fault=f"{str(error).removesuffix(RETRIED)}: {remedy}")
    except (Refused, Unsafe) as error:
        has_remedy = survey.is_read or isinstance(error, LoginRefused | UnknownHostKey)
        remedy = "" if has_remedy else f": check that the platform is {entry.platform}, and check the account's rights"
        return replace(survey, fault=f"{error}{remedy}")
    except ElementError as error:
        return replace(survey, fault=str(error))
    except Exception as error:  # noqa: BLE001 - an answer of one switch must not end the survey of the others
        return replace(survey, fault=f"switch {entry.name}: {type(error).__name__}: {error}")
    finally:
        driver.close()


def _read_all(driver: SwitchDriver, entry: SwitchToSurvey) -> SwitchReading:
    if not isinstance(driver, ReadsWholeSwitch):
        raise ElementError(
            f"switch {entry.name}: expected a platform whose driver can read all VLANs, got {entry.platform}: remove "
            "the switch from the file, and read its VLANs by hand"
        )
    return driver.read_all()


def _add_reading(survey: SwitchSurvey, reading: SwitchReading) -> SwitchSurvey:
    ports = {
        name: PortSurvey(
            derive_port_use(port),
            list_port_vlans(port.tagged, port.untagged, port.access, is_open=port.open),
            port.member or port.mode == AGGREGATED,
        )
        for name, port in reading.ports.items()
    }
    return replace(
        survey,
        is_read=True,
        ports=ports,
        vlans=reading.vlans,
        names=reading.names,
        reserved=survey.reserved | reading.reserved,
    )


def _read_neighbours(driver: SwitchDriver, entry: SwitchToSurvey, survey: SwitchSurvey) -> tuple[Neighbour, ...]:
    if not isinstance(driver, ReadsNeighbours):
        raise ElementError(f"switch {entry.name}: LLDP neighbours of platform {entry.platform} cannot be read")
    ports = tuple(PortName(name) for name in survey.ports if PortName.matches(name))
    return driver.read_neighbours(ports)


def main() -> None:
    """Read a request from standard input and print the survey."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with report_bad_input("virtcloud"):
        survey = survey_site(SurveyRequest.model_validate_json(sys.stdin.read()))
    sys.stdout.write(survey.model_dump_json())


if __name__ == "__main__":
    main()
