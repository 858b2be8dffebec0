"""Seeds of guests: secrets are shown only to agents, and public keys are validated."""

import pytest

from virtcloud.model.errors import BadInput
from virtcloud.model.guest_seed import WITH_SECRETS, GuestSeed, PublicKey

SEED = GuestSeed(user="alice", host_key="private host key", cluster_key="private cluster key")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAbcdefghijklmnopqrstuvwxyz0123456789ABCDEFG alice@laptop"


def test_a_seed_shows_its_secrets_to_nobody() -> None:
    assert "private" not in SEED.model_dump_json()
    assert "private" not in repr(SEED)


def test_an_agent_receives_the_secrets() -> None:
    assert GuestSeed.model_validate_json(SEED.model_dump_json(context=WITH_SECRETS)) == SEED
    assert "private host key" in SEED.model_dump_json(context=WITH_SECRETS)


def test_a_public_key_is_accepted_as_ssh_keygen_writes_it() -> None:
    assert PublicKey(KEY) == KEY


@pytest.mark.parametrize(
    "text", [KEY.replace("ssh-ed25519", "ssh-dss"), KEY + "\nssh-rsa AAAA", "command=x " + KEY, ""]
)
def test_other_text_is_no_public_key(text: str) -> None:
    with pytest.raises(BadInput, match="a public SSH key"):
        PublicKey(text)
