"""Imports modules whose sources are part of the running program (see ``pbs_hooks.bundle``)."""

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional


class SourceFinder:
    """Finds and loads modules from a dictionary of sources. Tracebacks show the lines of these modules."""

    def __init__(self, sources: "Dict[str, str]") -> None:
        """Create a finder. ``sources`` maps module names to sources."""
        self._sources = sources

    def find_spec(self, name: str, _path: "Any" = None, _target: "Any" = None) -> "Optional[ModuleSpec]":
        """Return the import spec of a module, or None if the dictionary does not contain its source."""
        if name not in self._sources:
            return None
        inside = name + "."
        package = any(other.startswith(inside) for other in self._sources)
        return ModuleSpec(name, self, origin="<%s>" % name, is_package=package)  # type: ignore[arg-type]

    def create_module(self, _spec: "ModuleSpec") -> None:
        """Return None, so that Python creates the module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the source of the module."""
        name = module.__name__
        code = compile(self._sources[name], name.replace(".", "/") + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - an import executes the source

    def get_source(self, name: str) -> "Optional[str]":
        """Return the source of a module, for tracebacks."""
        return self._sources.get(name)


def find_in(sources: "Dict[str, str]") -> None:
    """Add the sources to Python's import path.

    Module names are unique to one version of the bundle, so loaded modules of another version stay valid.
    """
    sys.meta_path.insert(0, SourceFinder(sources))
