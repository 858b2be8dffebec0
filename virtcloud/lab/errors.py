"""What can go wrong with a lab.

::

    VirtcloudError
    └── LabError
        ├── LabImpossible    this machine lacks something; the message says what, and how to get it
        ├── LabIsUp          there is a lab already
        ├── LabIsDown        there is none
        ├── UnknownInLab     the lab has no node or no service of this name
        └── LabFailed        something in the lab did not do what it should

The first two are :class:`BadInput` as well, the next two are :class:`NotFound`: nothing was changed.
"""

from typing import ClassVar

from virtcloud.model.errors import BadInput, NotFound, VirtcloudError


class LabError(VirtcloudError):
    """Any error of the lab."""

    slug: ClassVar[str] = "lab-error"


class LabImpossible(LabError, BadInput):
    """The machine lacks something; nothing was changed."""

    slug = "lab-impossible"


class LabIsUp(LabError, BadInput):
    """There is a lab already; nothing was changed."""

    slug = "lab-is-up"


class LabIsDown(LabError, NotFound):
    """There is no lab."""

    slug = "lab-is-down"


class UnknownInLab(LabError, NotFound):
    """The lab has no node, or a node no service, of this name; nothing was changed."""

    slug = "unknown-in-lab"


class LabFailed(LabError):
    """Something in the lab did not do what it should."""

    slug = "lab-failed"
