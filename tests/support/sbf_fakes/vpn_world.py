"""A world whose sites Brno and Praha have gateways with OpenVPN servers."""

from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import SITES, World, site, spec, three_sites
from virtcloud.model.topology import Topology
from virtcloud.model.vpn import VpnGrant

DEVICE_KEY = ec.derive_private_key(1, ec.SECP256R1())
"""One private key for all devices of tests, because the creation of keys takes time."""


def make_csr(key: ec.EllipticCurvePrivateKey = DEVICE_KEY) -> str:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    return request.public_bytes(Encoding.PEM).decode()


CSR = make_csr()


def gateway(name: str, **changes: object) -> dict[str, object]:
    return {"name": name, "ports": ["eth0"], "vpn": {"address": f"{name}.example.org"}} | changes


def site_with_gateways(name: str, *gateways: dict[str, object]) -> dict[str, Any]:
    """Return a site with these gateways. For each gateway, the site's switch has a port with the gateway's name."""
    made: dict[str, Any] = site(name)
    made["switches"][0]["ports"] += [described["name"] for described in gateways]
    return made | {"gateways": list(gateways)}


def topology_with_gateways(**gateways: tuple[dict[str, object], ...]) -> Topology:
    """Return the three sites with gateways: by default, two at Brno, one at Praha, none at Plzeň."""
    by_site = gateways or {"brno": (gateway("brno-gw"), gateway("brno-gw2")), "praha": (gateway("praha-gw"),)}
    links = [
        {"a": f"{described['name']}:eth0", "b": f"{name}-sw1:{described['name']}"}
        for name, found in by_site.items()
        for described in found
    ]
    plain = three_sites().model_dump(mode="json")
    sites = [site_with_gateways(name, *by_site.get(name, ())) for name in SITES]
    return Topology.model_validate(plain | {"sites": sites, "links": plain["links"] + links})


def furnish(world: World, topology: Topology | None = None) -> World:
    world.furnish(topology=topology or topology_with_gateways())
    world.settle()
    return world


def make_profile(
    world: World, token: str | None, key: str = "demo", device: str = "laptop", csr: str = CSR
) -> httpx.Response:
    return ask(world, "POST", f"/v1/clusters/{key}/vpn/profiles", {"device": device, "csr": csr}, token=token)


def grants_of(world: World, gateway: str, key: str = "demo") -> tuple[VpnGrant, ...]:
    """Return the grants of a network in a gateway's wanted document. Without a segment, the result is empty."""
    segments = world.wanted_of_host(gateway).segments
    return next((segment.grants for segment in segments if segment.key == key), ())


def devices(world: World, gateway: str = "brno-gw", key: str = "demo") -> list[str]:
    return [grant.device for grant in grants_of(world, gateway, key)]


def put(world: World, key: str = "demo", *hosts: str, **changes: Any) -> None:
    world.put(key, spec(*(hosts or ("brno-h1",)), **changes))
    world.settle()


def stop_agents(world: World, *gateways: str) -> None:
    """Stop the agents of gateways. Advance the clock until SBF considers these agents stale."""
    world.dead_hosts.update(gateways)
    world.service.scheduler.sweep.clock = lambda: 1e12
    world.service.scheduler.sweep._started = 0
    world.clock.advance(world.service.settings.timing.agent_silence + 1)
    world.settle()
