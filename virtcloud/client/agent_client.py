"""The calls of SBF's HTTP API that an agent needs, and all calls about clusters, as one Python object.

Agents import the other calls (`virtcloud.client.sbf`) only for reconciliation with a batch system, because their
documents need more than 1 MB of memory.
"""

from copy import copy
from types import TracebackType
from typing import Self

from virtcloud.client.agent_calls import AgentCalls
from virtcloud.client.cluster_calls import ClusterCalls
from virtcloud.client.connection import Connection
from virtcloud.client.credentials import TokenSource, no_token
from virtcloud.client.http_clients import SYSTEM_TRUST, TlsTrust

DEFAULT_URL = "unix:///run/virtcloud/sbf.sock"


class AgentClient(AgentCalls, ClusterCalls):
    """SBF at ``url``: ``http://host:port``, ``https://…`` or ``unix:///path/of/socket``.

    Every method raises ServiceUnreachable if SBF does not answer within ``timeout`` seconds (for a long poll:
    ``timeout`` plus ``wait`` seconds). If SBF answers with an error, the method raises the exception for that error.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        timeout: float = 10.0,
        *,
        token: TokenSource = no_token,
        trust: TlsTrust = SYSTEM_TRUST,
    ) -> None:
        """Prepare the connection without sending a call. Raise BadInput for an invalid address.

        ``token`` returns the token for each call (:func:`virtcloud.client.credentials.token_source`).
        """
        self._connection = Connection(url, timeout, token, trust)
        self._known = {}

    def __enter__(self) -> Self:
        """Return this client. The end of the context closes the client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connections."""
        self.close()

    @property
    def url(self) -> str:
        """The address of SBF, as the caller passed it."""
        return self._connection.url

    @property
    def token(self) -> TokenSource:
        """The function that returns the token for each call."""
        return self._connection.token

    @property
    def trust(self) -> TlsTrust:
        """The client's certificate, and the trusted certificate authorities."""
        return self._connection.trust

    def with_timeout(self, seconds: float) -> Self:
        """Return a client that shares this client's connections and has the timeout ``seconds``.

        Closing one of the two clients closes the shared connections.
        """
        other = copy(self)
        other._connection = self._connection.with_timeout(seconds)  # noqa: SLF001 - of this class
        return other

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
