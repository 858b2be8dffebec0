"""The errors of the lab.

::

    VirtcloudError
    └── LabError
        ├── LabImpossible    this machine lacks a prerequisite; the message contains the remedy
        ├── LabIsUp          a lab is running already
        ├── LabIsDown        no lab is running
        ├── UnknownInLab     the lab has no node or service of this name
        └── LabFailed        something in the lab failed

LabImpossible and LabIsUp are also subclasses of BadInput. LabIsDown and UnknownInLab are also subclasses of NotFound.
An operation that raises one of these four errors has changed no lab. The operation may have filled the caches of images
and kernels, and removed the remains of a crashed lab.
"""

from typing import ClassVar

from virtcloud.model.errors import BadInput, NotFound, VirtcloudError


class LabError(VirtcloudError):
    """The base of all errors of the lab."""

    slug: ClassVar[str] = "lab-error"


class LabImpossible(LabError, BadInput):
    """The machine lacks a prerequisite. No lab was started or changed."""

    slug = "lab-impossible"


class LabIsUp(LabError, BadInput):
    """A lab is running already. Nothing was changed."""

    slug = "lab-is-up"


class LabIsDown(LabError, NotFound):
    """No lab is running."""

    slug = "lab-is-down"


class UnknownInLab(LabError, NotFound):
    """The lab has no such node, or the node has no such service. Nothing was changed."""

    slug = "unknown-in-lab"


class LabFailed(LabError):
    """An operation of the lab failed."""

    slug = "lab-failed"
