import pytest

from virtcloud.model.errors import BadInput
from virtcloud.model.gateway_access import Destination, Fqdn


def make(**keys: object) -> Destination:
    return Destination.model_validate({"name": "web", "ports": ["tcp/443"], **keys})


def test_a_name_is_written_in_one_form() -> None:
    assert Fqdn("Archive.Example.ORG.") == "archive.example.org"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("*.example.org", "DNS has no addresses for a wildcard; list each name"),
        ("192.0.2.1", "addresses belong to `networks`"),
        ("2001:db8::1", "addresses belong to `networks`"),
        ("127.1", "addresses belong to `networks`"),
        ("localhost", "a name without a dot can mean another computer on each network; write the full name"),
        ("bücher.example", "write the name as DNS does, with xn--"),
        (".".join(["a" * 60] * 5) + ".org", "the name has 308 characters, and the maximum is 253"),
    ],
)
def test_a_text_that_names_no_computer_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadInput) as error:
        Fqdn(text)
    assert str(error.value).endswith(reason)


@pytest.mark.parametrize(
    "text", ["a_b.example", "-a.example", "a-.example", "a..b", "127.0x1", "x" * 64 + ".org", "a.b\n"]
)
def test_a_text_that_violates_the_rules_of_names_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="expected a fully qualified domain name such as"):
        Fqdn(text)


def test_a_destination_needs_networks_or_names() -> None:
    with pytest.raises(ValueError, match="expected `networks` or `fqdns`, got none"):
        make()


def test_private_networks_require_names() -> None:
    with pytest.raises(ValueError, match="expected `fqdns` beside `private_networks`, got no `fqdns`"):
        make(networks=["192.0.2.0/24"], private_networks=["10.0.0.0/8"])


def test_only_private_networks_need_permission() -> None:
    with pytest.raises(ValueError, match=r"expected a network in 10\.0\.0\.0/8, .*, got 192\.0\.2\.0/24"):
        make(fqdns=["www.example.org"], private_networks=["192.0.2.0/24"])


def test_a_destination_without_names_has_no_key_of_names() -> None:
    """Earlier versions refuse the keys ``fqdns`` and ``private_networks``."""
    written = make(networks=["192.0.2.0/24"]).model_dump(mode="json")
    assert written == {"name": "web", "networks": ["192.0.2.0/24"], "ports": ["tcp/443"], "description": ""}
