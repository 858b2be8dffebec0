"""SBF, as the agent's settings say where it is and who the agent is to it."""

from contextlib import suppress
from pathlib import Path

from virtcloud.agent.settings import AgentSettings
from virtcloud.client import SbfClient
from virtcloud.connection import Trust
from virtcloud.credentials import token_source
from virtcloud.model.errors import Unauthenticated


def service(settings: AgentSettings, token_file: Path | None, timeout: float = 10.0) -> SbfClient:
    """Make a client. A token's file that others can read is refused now; one that is still to come is waited for."""
    token = token_source(settings.sbf, file=token_file)
    with suppress(Unauthenticated):
        token()
    return SbfClient(settings.sbf, timeout, token=token, trust=Trust(settings.ca_file, settings.certificate))
