"""Modules whose sources are in the program itself."""

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional


class SourceFinder:
    """Finds and loads them; a traceback shows their lines."""

    def __init__(self, sources: "Dict[str, str]") -> None:
        """Take them, by module; a package is what has others in it."""
        self._sources = sources

    def find_spec(self, name: str, _path: "Any" = None, _target: "Any" = None) -> "Optional[ModuleSpec]":
        """Say that a module is here."""
        if name not in self._sources:
            return None
        inside = name + "."
        package = any(one.startswith(inside) for one in self._sources)
        return ModuleSpec(name, self, origin="<%s>" % name, is_package=package)  # type: ignore[arg-type]

    def create_module(self, _spec: "ModuleSpec") -> None:
        """Let Python make it."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run its source."""
        name = module.__name__
        code = compile(self._sources[name], name.replace(".", "/") + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - this is what importing does

    def get_source(self, name: str) -> "Optional[str]":
        """Give a module's lines, for tracebacks."""
        return self._sources.get(name)


def find_in(sources: "Dict[str, str]") -> None:
    """Let Python find modules there. Their names are this version's own, so that what is loaded already is right."""
    sys.meta_path.insert(0, SourceFinder(sources))
