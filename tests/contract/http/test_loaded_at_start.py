"""Tests of the data that SBF loads at its start: tokens of agents, and the topology."""

from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import text
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.poll_calls import (
    agent,
    counted_statements,
    revoke,
)
from support.sbf_fakes.world import World

from sbf_service.domain.authentication import Token
from sbf_service.store.pages import PagePart
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.users.tokens import read_token_page, revoke_token


def test_tokens_of_agents_are_known_after_a_restart(world: World) -> None:
    token = agent(world)
    ask(world, "GET", "/v1/whoami", token=token)
    cache = world.restarted().token_cache
    cache.load()
    assert (found := cache.find(parse_token(token))) is not None
    assert found.name == "brno-h1"


def test_used_tokens_are_checked_together_before_their_cache_entries_expire(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, unused, revoked = (parse_token(agent(world, f"brno-h{number}")) for number in (1, 2, 3))
    cache, now = world.service.token_cache, [0.0]
    monkeypatch.setattr(cache, "clock", lambda: now[0])
    monkeypatch.setattr(cache, "gets_notices", lambda: True)
    cache.authenticate_many([used, unused, revoked])
    world.clock.advance(3600)
    now[0] = 1000
    assert None not in {cache.find(used), cache.find(revoked)}
    with world.restarted().store.change() as unit:  # world.service gets no notice of the revocation
        revoke_token(unit, revoked.id)
    with counted_statements(world.service) as statements:
        cache.renew()
    assert len([one for one in statements if one.startswith("SELECT") and "tokens.digest" in one]) == 1
    now[0] = 2500
    assert [cache.find(token) is not None for token in (used, unused, revoked)] == [True, False, False]
    with world.store.read() as unit:
        hours = {
            view.id: view.last_used_at and view.last_used_at.hour for view in read_token_page(unit, PagePart()).rows
        }
    assert [hours[used.id], hours[unused.id]] == [1, 0]


def test_a_call_does_not_disturb_the_renewal_of_cached_tokens(world: World) -> None:
    """The call gets the set of found tokens before the renewal replaces this set.

    After the replacement, the call adds a token to the old set.
    """
    token = parse_token(agent(world))
    cache = world.service.token_cache
    cache.authenticate(token)
    cache.find(token)
    late = cache._found

    class CachedTokens(dict[str, Any]):
        def get(self, digest: str, default: Any = None) -> Any:
            late.add("found by the call")
            return super().get(digest, default)

    cache._cached = CachedTokens(cache._cached)
    cache.renew()
    assert cache.find(token) is not None


def test_a_start_with_revoked_tokens_loads_the_other_tokens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    used, revoked = agent(world, "brno-h1"), agent(world, "brno-h2")
    for token in (used, revoked):
        ask(world, "GET", "/v1/whoami", token=token)
    revoke(world, revoked)
    started = world.restarted()
    monkeypatch.setattr(started.scheduler, "start", lambda: None)
    monkeypatch.setattr(started.retention, "start", lambda: None)
    started.start()
    started.change_reader.poll_once()
    cache = started.token_cache
    found = [cache.find(parse_token(token)) is not None for token in (used, revoked)]
    started.stop()
    assert found == [True, False]


def test_a_start_parses_the_topology(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started = world.restarted()
    monkeypatch.setattr(started.scheduler, "start", lambda: None)
    monkeypatch.setattr(started.retention, "start", lambda: None)
    started.start()
    with counted_statements(started) as statements, started.store.read() as unit:
        assert read_topology(unit).sites
    started.stop()
    assert not [one for one in statements if "site_documents" in one]


def test_an_unreadable_topology_does_not_prevent_a_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica of a later version may have stored a topology with JSON keys that this version does not know."""
    with world.service.store.engine.begin() as connection:
        connection.execute(text("UPDATE site_documents SET document = replace(document, '\"hosts\"', '\"later\"')"))
    started = world.restarted()
    monkeypatch.setattr(started.scheduler, "start", lambda: None)
    monkeypatch.setattr(started.retention, "start", lambda: None)
    started.start()
    with pytest.raises(ValidationError), started.store.read() as unit:
        read_topology(unit)
    started.stop()


def parse_token(text: str) -> Token:
    token = Token.parse(text)
    assert token is not None
    return token
