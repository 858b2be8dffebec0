"""Surveys of a site's switches: the VLAN IDs in use, a proposed pool, and a draft of the topology. Pure."""

from collections.abc import Iterator, Sequence

from sbf_service.domain.cabling import CanonicalPort
from sbf_service.domain.ownership import find_stated_vlans, is_default_name
from sbf_service.domain.survey_draft import SwitchSurvey, TopologyDraft, replace_unprintable
from virtcloud.model.port_use import is_in_other_use
from virtcloud.model.site import SitePart
from virtcloud.model.site_survey import SiteSurvey, SurveyedSwitch, SurveyedVlan
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

USABLE = VlanSet(range(2, 4095))
LEGACY = VlanSet(range(1002, 1006))
"""The VLAN IDs of Token Ring and FDDI. Cisco's switches reserve these VLAN IDs."""
FIRST_PROPOSED = 100
UNUSED_MODES = frozenset({"", "access"})


def make_site_survey(
    site: Name, surveys: Sequence[SwitchSurvey], hosts: Sequence[str], canonical: CanonicalPort, pool_size: int
) -> SiteSurvey:
    """Return the VLANs in use, a proposed pool and a draft of the topology.

    If no switch was read, no VLAN ID counts as free. ``hosts`` are patterns of the hosts' names, such as ``node*``.
    """
    vlans = tuple(_list_vlans(surveys))
    used = VlanSet(vlan.vlan for vlan in vlans)
    reserved = VlanSet(vlan for survey in surveys for vlan in survey.reserved)
    is_read = any(survey.is_read for survey in surveys)
    free = USABLE - used - reserved - LEGACY if is_read else VlanSet()
    pool = propose_pool(free, pool_size)
    draft = TopologyDraft(site, surveys, hosts, canonical)
    part = draft.part()
    return SiteSurvey(
        site=site,
        switches=tuple(_describe_switch(survey) for survey in surveys),
        vlans=vlans,
        reserved=reserved,
        free=free,
        pool=pool,
        draft=part,
        others=tuple(draft.others()),
        notes=(*_pool_notes(surveys, pool, pool_size), *draft.notes(part), *_use_notes(surveys, part, pool, canonical)),
    )


def propose_pool(free: VlanSet, size: int) -> VlanSet:
    """Return the first ``size`` consecutive free VLAN IDs from 100 on.

    If no free range from 100 on is long enough, return at most ``size`` VLAN IDs from the longest free range. This
    range can begin below 100.
    """
    ranges = [range(max(first, FIRST_PROPOSED), last + 1) for first, last in free.ranges()]
    for found in ranges:
        if len(found) >= size:
            return VlanSet(found[:size])
    longest = max((range(first, last + 1) for first, last in free.ranges()), key=len, default=range(0))
    return VlanSet(longest[:size])


def _describe_switch(survey: SwitchSurvey) -> SurveyedSwitch:
    return SurveyedSwitch(
        name=survey.switch.name,
        platform=survey.switch.platform,
        address=survey.switch.address or "",
        fault=survey.fault,
        is_read=survey.is_read,
        open_trunks=tuple(name for name, port in survey.ports.items() if port.use.every and not port.is_member),
    )


def _list_vlans(surveys: Sequence[SwitchSurvey]) -> Iterator[SurveyedVlan]:
    names: dict[VlanId, dict[Name, str]] = {}
    ports: dict[VlanId, dict[Name, list[str]]] = {}
    for survey in surveys:
        switch = survey.switch.name
        for vlan in survey.vlans:
            name = survey.names.get(vlan, "")
            names.setdefault(vlan, {}).update({switch: replace_unprintable(name)} if name else {})
        for port, found in survey.ports.items():
            for vlan in () if found.is_member else found.vlans:
                ports.setdefault(vlan, {}).setdefault(switch, []).append(port)
    for vlan in VlanSet([*names, *ports]):
        on_ports = {switch: tuple(listed) for switch, listed in ports.get(vlan, {}).items()}
        yield SurveyedVlan(vlan=vlan, names=names.get(vlan, {}), ports=on_ports)


def list_port_vlans(tagged: VlanSet, untagged: VlanSet, access: VlanId | None, *, is_open: bool) -> VlanSet:
    """Return the VLAN IDs of a port. If ``is_open``, the port carries every VLAN, and its tagged VLANs are omitted."""
    stated = VlanSet() if is_open else find_stated_vlans(tagged, VlanSet(range(1, 4095)))
    return stated | untagged | ([] if access is None else [access])


def _pool_notes(surveys: Sequence[SwitchSurvey], pool: VlanSet, size: int) -> Iterator[str]:
    unread = [survey.switch.name for survey in surveys if not survey.is_read]
    if len(pool) < size and len(unread) < len(surveys):
        yield f"the proposed pool has {len(pool)} VLAN IDs instead of {size}, because a longer range is not free"
    if pool and unread:
        yield f"the VLANs of {', '.join(unread)} are unknown: VLAN IDs of the proposed pool may be in use there"
    for vlan, names in _find_different_names(surveys):
        yield f"VLAN {vlan} has different names: {', '.join(names)}: is it the same network on all switches?"


def _find_different_names(surveys: Sequence[SwitchSurvey]) -> Iterator[tuple[int, list[str]]]:
    by_vlan: dict[int, dict[str, str]] = {}
    for survey in surveys:
        for vlan, name in survey.names.items():
            if name and not is_default_name(vlan, name) and vlan > 1:
                by_vlan.setdefault(vlan, {}).setdefault(name, survey.switch.name)
    for vlan, names in sorted(by_vlan.items()):
        if len(names) > 1:
            yield vlan, [f"{replace_unprintable(name)!r} on {switch}" for name, switch in names.items()]


def _use_notes(
    surveys: Sequence[SwitchSurvey], part: SitePart, pool: VlanSet, canonical: CanonicalPort
) -> Iterator[str]:
    """Yield a note for each port of the draft in other use.

    SBF changes such a port only after its adoption.
    """
    drafted = {switch.name: switch.ports for switch in part.site.switches}
    for survey in surveys:
        name = survey.switch.name
        for port in drafted.get(name, ()):
            found = survey.ports.get(port) or survey.ports.get(canonical(name, port))
            if found is not None and is_in_other_use(found.use, pool, UNUSED_MODES):
                yield (
                    f"port {name}:{port} is {found.use}: SBF changes the port only after its adoption "
                    f"(virtcloud element adopt {name} {port})"
                )
