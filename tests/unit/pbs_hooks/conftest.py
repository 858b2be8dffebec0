from collections.abc import Iterator

import pytest
from support.batch_fakes.scripted_sbf import ScriptedSbf, scripted_sbf
from support.batch_fakes.server_hook import ServerHook


@pytest.fixture
def sbf() -> Iterator[ScriptedSbf]:
    with scripted_sbf() as sbf:
        yield sbf


@pytest.fixture
def server_hook(sbf: ScriptedSbf) -> ServerHook:
    return ServerHook(sbf.url)
