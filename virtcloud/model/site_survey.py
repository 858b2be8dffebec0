"""Documents of ``virtcloud site import``: the VLANs of a site's switches, and a draft of the site's topology."""

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.site import SitePart
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet


class SurveyRequest(Document):
    """The input of a survey: the text of the file with the switches, the name of this file, and the options."""

    text: str
    source: str
    settings: str | None = None
    """The path of SBF's settings file. The survey may use the credentials in these settings."""
    pool_size: int = Field(100, ge=1, le=4093)
    """The number of VLAN IDs of the proposed pool."""
    timeout_s: float = 10
    """Seconds to wait for each answer of a switch."""


class SurveyedSwitch(Document):
    """The result of reading one switch."""

    name: Name
    platform: str
    address: str
    fault: str | None = None
    """Why the switch, or a part of its state, could not be read; null: no error."""
    is_read: bool = True
    """Whether the VLANs and ports were read."""
    open_trunks: tuple[str, ...] = ()
    """The ports that carry every VLAN."""


class SurveyedVlan(Document):
    """A VLAN ID in use at the site."""

    vlan: VlanId
    names: dict[Name, str] = Field(default_factory=dict)
    """The name of the VLAN on each switch that shows a name."""
    ports: dict[Name, tuple[str, ...]] = Field(default_factory=dict)
    """The ports of each switch that carry the VLAN. Ports that carry every VLAN are omitted."""


class SurveyedNeighbour(Document):
    """An LLDP neighbour that is not in the draft of the topology."""

    switch: Name
    port: str
    name: str
    neighbour_port: str


class SiteSurvey(Document):
    """The result of a survey. ``draft`` and ``pool`` are proposals; nothing was changed."""

    site: Name
    switches: tuple[SurveyedSwitch, ...]
    vlans: tuple[SurveyedVlan, ...] = ()
    """The VLAN IDs in use."""
    reserved: VlanSet = VlanSet()
    """The VLAN IDs that the switches reserve."""
    free: VlanSet = VlanSet()
    """The VLAN IDs from 2 to 4094, without 1002 to 1005, that no read switch uses or reserves. Empty if no switch was
    read."""
    pool: VlanSet = VlanSet()
    """The proposed pool, a range of ``free``."""
    draft: SitePart
    """The draft of the site's part of the topology."""
    others: tuple[SurveyedNeighbour, ...] = ()
    """LLDP neighbours that are not in the draft."""
    notes: tuple[str, ...] = ()
    """Instructions for the administrator: what to check or complete."""

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults of all switches."""
        return tuple(switch.fault for switch in self.switches if switch.fault)
