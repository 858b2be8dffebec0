"""Admission rules of this host: conditions under which the agent runs a guest, independent of SBF.

The rules limit the damage of a stolen token or a defect of SBF, which could otherwise run any guest on this host or
read the host's files as root.
"""

import os
import pwd
import stat
from dataclasses import dataclass, field
from pathlib import Path

from virtcloud.agent.guests.images import IMAGE_FILE
from virtcloud.model.access import ADMIT_EVERYBODY, AdmissionRule, ClusterOrigin
from virtcloud.model.errors import Refused
from virtcloud.model.values import Name
from virtcloud.model.wanted import GuestWanted, Segment

SETTINGS_HINT = "in the settings of this machine's agent"


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Owners whose guests this host runs, and images that users may choose without a batch system (None: all)."""

    admits: AdmissionRule = field(default=ADMIT_EVERYBODY)
    images: tuple[Name, ...] | None = None

    def check(self, segment: Segment, guest: GuestWanted, images: Path) -> None:
        """Raise Refused for a guest that this host must not run. ``images`` is the folder of images."""
        origin = segment.origins.get(guest.cluster or segment.id)
        if origin is None:
            if self != NO_RULES:
                raise Refused(
                    f"guest {guest.name}: SBF sends no owner, and [guests] {SETTINGS_HINT} has rules: upgrade SBF"
                )
            return
        if not self.admits.allows(origin):
            raise Refused(
                f"guest {guest.name} of {origin.owner}: this machine is for {self.admits} ([guests] {SETTINGS_HINT})"
            )
        if not origin.batch and self.images is not None and guest.image not in self.images:
            known = ", ".join(self.images) or "none"
            raise Refused(
                f"guest {guest.name}: {origin.owner} may not name image {guest.image}; images for users here: {known} "
                f"(users_images {SETTINGS_HINT})"
            )
        _check_readable(guest, origin, images)


NO_RULES = AdmissionRules()
"""Rules that admit every cluster."""


def _check_readable(guest: GuestWanted, origin: ClusterOrigin, images: Path) -> None:
    """Raise Refused when the owner has no read permission for the image's description.

    A missing image is no error here.
    """
    path = images / guest.image / IMAGE_FILE
    try:
        found = [one.stat() for one in (path, path.parent, images)]
    except OSError:
        return
    uid, groups = _find_ids(origin.owner)
    needed = (stat.S_IRUSR, stat.S_IXUSR, stat.S_IXUSR)
    if not all(_is_permitted(one, bit, uid, groups) for one, bit in zip(found, needed, strict=True)):
        raise Refused(f"guest {guest.name}: image {guest.image} is not readable by {origin.owner}")


def _find_ids(user: str) -> tuple[int | None, frozenset[int]]:
    """Return a user's user ID and group IDs on this host. For an unknown user, return None and no groups."""
    try:
        account = pwd.getpwnam(user)
        return account.pw_uid, frozenset(os.getgrouplist(user, account.pw_gid))
    except KeyError:
        return None, frozenset()


def _is_permitted(found: os.stat_result, bit: int, uid: int | None, groups: frozenset[int]) -> bool:
    """Return whether a file's mode permits an action.

    ``bit`` is the owner's permission bit; the bits of the group and of others follow from it.
    """
    if uid == 0:
        return True
    shift = 0 if uid == found.st_uid else 3 if found.st_gid in groups else 6
    return bool(found.st_mode & (bit >> shift))
