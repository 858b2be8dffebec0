"""What the tests of hooks share: an SBF that says what it is told, and the server's hook beside it."""

from collections.abc import Iterator

import pytest
from pbs_fakes.sbf import FakeSbf, fake_sbf
from pbs_fakes.server_hook import ServerHook


@pytest.fixture
def sbf() -> Iterator[FakeSbf]:
    with fake_sbf() as made:
        yield made


@pytest.fixture
def server_hook(sbf: FakeSbf) -> ServerHook:
    return ServerHook(sbf.url)
