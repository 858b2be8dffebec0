"""What lldpd says of a Linux machine's neighbours: ``lldpcli -f json0`` (lldpcli(8)); seen with lldpd 1.0.16."""

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbf_service.drivers.shell import Shell, quoted
from sbf_service.neighbour import Neighbour
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name

SHOW = "lldpcli -f json0 show neighbors"


class _Value(BaseModel):
    value: str = ""


class _Chassis(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    id: list[_Value] = []
    name: list[_Value] = []
    address: list[_Value] = Field([], alias="mgmt-ip")


class _Port(BaseModel):
    id: list[_Value]
    descr: list[_Value] = []


class _Interface(BaseModel):
    name: str
    chassis: list[_Chassis]
    port: list[_Port]


class _Interfaces(BaseModel):
    interface: list[_Interface] = []


class _Answer(BaseModel):
    lldp: list[_Interfaces]


def neighbours_by(shell: Shell, name: Name) -> tuple[Neighbour, ...]:
    """Ask the lldpd of the switch called ``name``; raises Refused without one, Unsafe when it is not understood."""
    shell.renew()
    code, said = shell.run(f"{SHOW} 2>&1")
    if code:
        raise Refused(f"switch {name}: {SHOW!r} failed: the switch said {quoted(said)!r}: does lldpd run there?")
    try:
        return neighbours(said)
    except ValueError as error:
        raise Unsafe(f"switch {name}: the answer of {SHOW!r} is not understood: {error}") from error


def neighbours(said: str) -> tuple[Neighbour, ...]:
    """Read the answer; raises ValueError when it is not one."""
    try:
        answer = _Answer.model_validate_json(said)
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} faults, the first: {error.errors()[0]['msg']}") from error
    return tuple(
        Neighbour(
            local=one.name,
            chassis=_first(chassis.id),
            port=_first(port.id),
            name=_first(chassis.name),
            port_description=_first(port.descr),
            address=_first(chassis.address),
        )
        for all_of_them in answer.lldp
        for one in all_of_them.interface
        for chassis, port in zip(one.chassis, one.port, strict=True)
    )


def _first(values: list[_Value]) -> str:
    return values[0].value if values else ""
