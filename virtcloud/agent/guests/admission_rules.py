"""The host administrator's admission rules, which the agent checks before it starts a guest.

SBF cannot change the rules. The rules protect the host from a stolen token and from defects of SBF.
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

SETTINGS_HINT = "in the settings of this host's agent"


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The owners whose guests this host runs, and the images that clusters without a batch job may use.

    ``images`` is None if these clusters may use all images. ``open_filters``: whether the host also runs guests of
    clusters with the spec ``filters: open``.
    """

    admits: AdmissionRule = field(default=ADMIT_EVERYBODY)
    images: tuple[Name, ...] | None = None
    open_filters: bool = False

    def check(self, segment: Segment, guest: GuestWanted, images: Path) -> None:
        """Raise Refused unless the rules admit the guest. ``images`` is the folder of images.

        The agent checks read permission only for images in this folder. SBF checks who may use images of its catalogue.
        """
        if segment.filters == "open" and not self.open_filters:
            raise Refused(
                f"guest {guest.name}: this host runs no guests of clusters with open filters (open_filters "
                f"{SETTINGS_HINT})"
            )
        origin = segment.origins.get(guest.cluster or segment.id)
        if origin is None:
            if (self.admits, self.images) != (NO_RULES.admits, NO_RULES.images):
                raise Refused(
                    f"guest {guest.name}: expected the owner from SBF, got none; [guests] {SETTINGS_HINT} has rules "
                    "about owners: upgrade SBF"
                )
            return
        if not self.admits.allows(origin):
            raise Refused(
                f"guest {guest.name}: this host is for {self.admits}, not for {origin} ([guests] {SETTINGS_HINT})"
            )
        if not origin.batch and self.images is not None and guest.image not in self.images:
            permitted = ", ".join(self.images) or "none"
            raise Refused(
                f"guest {guest.name}: {origin.owner} may not choose image {guest.image}; users may choose: "
                f"{permitted} (users_images {SETTINGS_HINT})"
            )
        if guest.image_source is None:
            _check_readable(guest, origin, images)


NO_RULES = AdmissionRules()
"""Rules that admit every owner and image, but no guests with open filters."""


def _check_readable(guest: GuestWanted, origin: ClusterOrigin, images: Path) -> None:
    """Raise Refused if the cluster's owner has no read permission for the image's description.

    `read_image` reports a missing image.
    """
    path = images / guest.image / IMAGE_FILE
    try:
        statuses = [part.stat() for part in (path, path.parent, images)]
    except OSError:
        return
    uid, groups = _find_ids(origin.owner)
    needed = (stat.S_IRUSR, stat.S_IXUSR, stat.S_IXUSR)
    if not all(_is_permitted(status, bit, uid, groups) for status, bit in zip(statuses, needed, strict=True)):
        raise Refused(f"guest {guest.name}: image {guest.image} is not readable by {origin.owner}")


def _find_ids(user: str) -> tuple[int | None, frozenset[int]]:
    try:
        account = pwd.getpwnam(user)
        return account.pw_uid, frozenset(os.getgrouplist(user, account.pw_gid))
    except KeyError:
        return None, frozenset()


def _is_permitted(status: os.stat_result, bit: int, uid: int | None, groups: frozenset[int]) -> bool:
    """Return whether a file's mode permits an action of a user. ``bit`` is the permission bit of the file's owner."""
    if uid == 0:
        return True
    shift = 0 if uid == status.st_uid else 3 if status.st_gid in groups else 6
    return bool(status.st_mode & (bit >> shift))
