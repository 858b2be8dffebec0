"""What is said in words on every sheet: what a transport needs of the backbone, whatever the platform. Pure."""

from virtcloud.model.transport import Transport, TransportKind

TREES = (
    "Do not tunnel the sites' BPDUs and do not answer them: each site keeps a spanning tree of its own. A second port "
    "of the same site in the same service would be a loop that nobody breaks."
)
OWN_PORT = (
    "These lines are for a port that carries nothing else: they leave it a trunk without any VLAN, to which SBF adds "
    "each cluster's and takes it out again. Where the port is in use already, leave it as it is, and keep the numbers "
    "of the pool off it."
)
ROOM = "A full frame of a guest has 1500 bytes, and its tag 4 more; 802.1ad adds another 4, VXLAN 50, MPLS 22 to 30."
STRANGERS = "Nothing else may be in this service: whoever is in it is on every cluster's network."
CIRCUIT = "A dedicated circuit must pass tagged frames as they are, and of 1504 bytes and more."


def service(transport: Transport) -> str:
    """Say what the backbone must do for a transport."""
    if transport.kind is TransportKind.DIRECT:
        return CIRCUIT.rstrip(".")
    if transport.s_tag:
        return (
            f"802.1ad, port-based: all that this port takes in goes into the service VLAN {transport.s_tag} with a tag "
            "of its own (0x88a8 by the standard), tagged frames with all their tags, and nothing of it is looked at"
        )
    if transport.s_tags:
        return f"802.1ad: the service VLANs {transport.s_tags} pass between all edges (0x88a8 by the standard)"
    numbers = transport.vpn_ids or transport.vpn_id or transport.vnis
    return f"{transport.kind.value.upper()} in AS {transport.asn}, services {numbers}: sessions between all edges"
