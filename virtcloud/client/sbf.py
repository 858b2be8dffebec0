"""SBF's HTTP API as one Python object, with a method for each call."""

from virtcloud.client.access_calls import AccessCalls
from virtcloud.client.agent_client import AgentClient
from virtcloud.client.dry_run_calls import DryRunCalls
from virtcloud.client.element_calls import ElementCalls
from virtcloud.client.guest_calls import GuestCalls
from virtcloud.client.image_calls import ImageCalls
from virtcloud.client.publication_calls import PublicationCalls
from virtcloud.client.ssh_calls import SshCalls
from virtcloud.client.topology_calls import TopologyCalls
from virtcloud.client.vpn_calls import VpnCalls


class SbfClient(
    AgentClient,
    TopologyCalls,
    DryRunCalls,
    ElementCalls,
    GuestCalls,
    ImageCalls,
    AccessCalls,
    VpnCalls,
    SshCalls,
    PublicationCalls,
):
    """All calls of SBF at ``url``: ``http://host:port``, ``https://…`` or ``unix:///path/of/socket``.

    Every method raises ServiceUnreachable if SBF does not answer within ``timeout`` seconds (for a long poll:
    ``timeout`` plus ``wait`` seconds). If SBF answers with an error, the method raises the exception for that error.
    """
