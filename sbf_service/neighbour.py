"""A neighbour as a device hears it by LLDP (IEEE 802.1AB). Pure."""

import re
from dataclasses import dataclass, fields

from virtcloud.model.errors import printable

MAC = re.compile(r"(?:[0-9a-f]{2}){6}")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Who was heard on ``local``, a port of the device that heard it, in its own words; what was not said is empty.

    ``chassis`` and ``port`` are identifiers of any subtype: MAC addresses, names of interfaces, numbers. Whoever is at
    the other end of a cable chooses these words, so that they are made printable.
    """

    local: str
    chassis: str
    port: str
    name: str = ""
    port_description: str = ""
    address: str = ""

    def __post_init__(self) -> None:
        """Make every word printable."""
        for one in fields(self):
            object.__setattr__(self, one.name, printable(getattr(self, one.name)))

    @property
    def short_name(self) -> str:
        """The system's name without its domain, in lower case."""
        return self.name.partition(".")[0].lower()

    @property
    def names_its_port(self) -> bool:
        """Whether the port's identifier is a name: neither a MAC address nor a bare number, which may be any index."""
        return bool(self.port) and not self.port.isdigit() and not is_mac(self.port)

    def __str__(self) -> str:
        """Say who it is, and which port it names."""
        who = self.name or f"a device without a name (chassis {self.chassis})"
        description = f" ({self.port_description})" if self.port_description not in ("", self.port) else ""
        return f"{who}, port {self.port}{description}"


def is_mac(text: str) -> bool:
    """Say whether a text is a MAC address, however it is punctuated."""
    return MAC.fullmatch(re.sub(r"[.: -]", "", text.lower())) is not None
