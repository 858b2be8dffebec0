"""The topology: sites, elements, links and transports, as administrators describe them, without faults."""

from typing import Any, Final, Self

from pydantic import ValidationInfo, model_validator

from virtcloud.model.errors import BadInput
from virtcloud.model.topology_document import Link, Site, TopologyDocument
from virtcloud.model.topology_faults import find_topology_faults

STORED: Final = "stored"
"""The context in which a topology is parsed without a check for faults, because SBF checked it before it was stored."""


class Topology(TopologyDocument):
    """All sites, elements, links and transports that SBF may configure. Raise BadInput with the first fault, if any."""

    def with_site(self, site: Site, links: tuple[Link, ...]) -> "Topology":
        """Return a topology in which ``site`` replaces the site of the same name, and ``links`` its inner links.

        Look-ups are derived from those of this topology. Raise ValidationError for a topology with faults.
        """
        former, former_links = self.sites_by_name[site.name], self.links_by_site.get(site.name, ())
        replaced = set(map(id, former_links))
        others = self.links if links == former_links else tuple(one for one in self.links if id(one) not in replaced)
        sites = list(self.sites)
        sites[self.site_positions[site.name]] = site
        fields: dict[str, Any] = {
            "name": self.name,
            "transports": self.transports,
            "sites": tuple(sites),
            "links": others if links == former_links else (*others, *links),
        }
        if not self._is_separate(former, site, links):
            return Topology.model_validate(fields)
        topology = Topology.model_construct(**fields)
        _derive_look_ups(self, topology, former, site)
        return topology

    def _is_separate(self, former: Site, site: Site, links: tuple[Link, ...]) -> bool:
        """Return whether a new site has no fault, and no relation to other sites except for their common transports."""
        names = {element.name for element in former.elements}
        others = (element.name for element in site.elements if element.name not in names)
        if site.name in self.linked_sites or any(name in self.elements for name in others):
            return False
        try:
            Topology(name=self.name, transports=self.transports, sites=(site,), links=links)
        except BadInput:
            return False
        return True

    @model_validator(mode="after")
    def _check_faults(self, information: ValidationInfo) -> Self:
        """Check the whole topology, unless the context is ``STORED``."""
        if information.context == STORED:
            return self
        for fault in find_topology_faults(self):
            raise fault
        return self


def _derive_look_ups(before: Topology, after: Topology, former: Site, site: Site) -> None:
    """Set the look-ups that are cheap to derive. Others are made on first use.

    If the names of elements or their order change, the order of the look-ups changes too.
    """
    look_ups: dict[str, object] = {
        "transports_by_name": before.transports_by_name,
        "site_positions": before.site_positions,
        "sites_by_name": before.sites_by_name | {site.name: site},
    }
    if [element.name for element in former.elements] == [element.name for element in site.elements]:
        look_ups["elements"] = before.elements | {element.name: element for element in site.elements}
        look_ups["site_of"] = before.site_of | {element.name: site for element in site.elements}
        look_ups["hosts"] = before.hosts | {host.name: host for host in site.hosts}
        look_ups["gateways"] = before.gateways | {gateway.name: gateway for gateway in site.gateways}
    if after.links is before.links:
        look_ups["peers"], look_ups["access_ports"] = before.peers, before.access_ports
        look_ups["links_by_site"], look_ups["linked_sites"] = before.links_by_site, before.linked_sites
    vars(after).update(look_ups)
