"""What the hooks are made of: their programs, and what their settings may be."""

from virtcloud.model.errors import BadInput
from virtcloud.pbs.bundle import bundle
from virtcloud.pbs.hooks import settings
from virtcloud.pbs.install import Keys, Kind, Parts

TABLES = {"server": settings.SERVER, "mom": settings.MOM}


def check(kind: Kind, keys: Keys) -> None:
    """Refuse settings that a hook would refuse; raises :class:`BadInput`."""
    try:
        settings.checked(dict(keys), TABLES[kind])
    except settings.SettingsError as error:
        raise BadInput("\n".join(f"{kind}: {line}" for line in str(error).splitlines())) from error


PARTS = Parts(bundle, check)
