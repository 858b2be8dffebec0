"""The first lines of every bundle: the function that loads its modules."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Dict


def load(sources: "Dict[str, str]", loader: str, entry: str) -> "ModuleType":
    """Import and return the module ``entry``.

    The loader is a module itself: PBS clears the global names of a hook when the hook ends, while its interpreter and
    the imported modules stay.
    """
    if loader not in sys.modules:
        made = sys.modules[loader] = type(sys)(loader)
        exec(sources[loader], made.__dict__)  # noqa: S102 - this is what importing does
        made.find_in(sources)
    __import__(entry)
    return sys.modules[entry]
