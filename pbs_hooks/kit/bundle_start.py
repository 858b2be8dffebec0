"""How a program that has its modules' sources in it gets at them."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Dict


def load(sources: "Dict[str, str]", loader: str, entry: str) -> "ModuleType":
    """Give the module ``entry``.

    What loads it is a module, too: PBS empties a hook's own names when the hook is over, while its interpreter and
    what was imported in it go on.
    """
    if loader not in sys.modules:
        made = sys.modules[loader] = type(sys)(loader)
        exec(sources[loader], made.__dict__)  # noqa: S102 - this is what importing does
        made.find_in(sources)
    __import__(entry)
    return sys.modules[entry]
