"""Fixtures of the tests with a real job socket and an SBF that authenticates the agent."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr
from support.hosts.job_socket_agent import Agent, FakeBridges, agent, settings_in
from support.sbf_fakes.job_world import serving
from support.sbf_fakes.world import World

from virtcloud.agent.settings import AgentSettings
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_in(tmp_path / "agent", timing={"job_grace": 0})


@pytest.fixture
def live(world: World, settings: AgentSettings) -> Iterator[Callable[..., Agent]]:
    """Return a function that starts an agent of brno-h1. The function first stops the former agent."""
    with ExitStack() as all_lives:
        url = all_lives.enter_context(serving(world))
        token = world.token(Role.AGENT, "brno-h1")
        bridges = FakeBridges({"br100": set()})
        life = all_lives.enter_context(ExitStack())

        def start(url: str = url) -> Agent:
            life.close()
            sbf = life.enter_context(SbfClient(url, 3, token=lambda: SecretStr(token)))
            return life.enter_context(agent(settings, sbf, bridges))

        yield start


@pytest.fixture
def host(live: Callable[..., Agent]) -> Agent:
    return live()
