"""A part of every bundle: the function that loads the bundle's modules."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Dict


def load(sources: "Dict[str, str]", loader: str, entry: str) -> "ModuleType":
    """Import the module ``entry`` from ``sources``, and return the module.

    PBS clears the hook's global names at the hook's end, so the loader is an imported module, which PBS does not clear.
    """
    if loader not in sys.modules:
        module = sys.modules[loader] = type(sys)(loader)
        exec(sources[loader], module.__dict__)  # noqa: S102 - an import executes the source
        module.find_in(sources)
    __import__(entry)
    return sys.modules[entry]
