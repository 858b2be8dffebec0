"""The role of a user whom an OpenID Connect provider has authenticated. Pure.

The settings map the groups in a provider's claims to roles. A user without a mapped group has no access, unless the
settings admit all users.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from sbf_service.domain.authentication import Principal
from virtcloud.model.access import Role
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, Forbidden
from virtcloud.model.values import Name, UserName

Groups = tuple[str, ...]


class OidcRoles(Document):
    """The mapping of a provider's users and groups to roles."""

    user_claim: Annotated[str, Field(min_length=1)] = Field(
        description="Claim with the user's name in SBF, such as `uid`. Each user must have a different value, and "
        "users must not be able to change the value, because a user owns every cluster whose owner has this name."
    )
    groups_claim: str = Field("groups", description="Claim with the list of the user's groups.")
    operators: Groups = Field((), description="Groups whose members are operators.")
    site_administrators: dict[str, tuple[Name, ...]] = Field(
        default_factory=dict,
        description='Groups whose members are site administrators, with their sites: `{ "netops-brno" = ["brno"] }`.',
    )
    users: Literal["all"] | Groups = Field(
        (), description='Groups whose members are users; `"all"`: every user of the provider.'
    )


def make_principal(claims: Mapping[str, object], roles: OidcRoles) -> Principal:
    """Return the principal of a user, with the highest of the roles operator, site administrator and user.

    Raise BadInput for claims without a valid name. Raise Forbidden for a user without a role.
    """
    name, groups = _find_name(claims, roles), _find_groups(claims, roles)
    if groups & set(roles.operators):
        return Principal(name, Role.OPERATOR)
    sites = {site for group in groups for site in roles.site_administrators.get(group, ())}
    if sites:
        return Principal(name, Role.SITE_ADMINISTRATOR, frozenset(sites))
    if roles.users == "all" or groups & set(roles.users):
        return Principal(name, Role.USER)
    raise Forbidden(
        f"{name} may not log in: expected a group in the settings console.oidc.roles, "
        f"got {', '.join(sorted(groups)) or 'no group'}; ask an operator of SBF for a role"
    )


def _find_name(claims: Mapping[str, object], roles: OidcRoles) -> UserName:
    name = claims.get(roles.user_claim)
    if not isinstance(name, str):
        raise BadInput(
            f"the provider sent no text in the claim {roles.user_claim!r}; claims that it sent: "
            f"{', '.join(sorted(claims)) or 'none'}. An operator corrects console.oidc"
        )
    if not UserName.matches(name):
        raise BadInput(
            f"the provider sent {name!r} in the claim {roles.user_claim!r}: expected {UserName.meaning}. "
            "An operator corrects console.oidc"
        )
    return UserName(name)


def _find_groups(claims: Mapping[str, object], roles: OidcRoles) -> set[str]:
    found = claims.get(roles.groups_claim)
    if isinstance(found, str):
        return {found}
    return {group for group in found if isinstance(group, str)} if isinstance(found, list) else set()
