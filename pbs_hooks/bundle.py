"""Builds a hook or a script as one file: a short head, and the sources of all modules, which are loaded on demand.

The head accepts jobs without a virtual cluster before any other module is loaded. Module names are unique to a bundle,
because the interpreter of a PBS server may still contain modules of another bundle. The bundle contains the Python part
of PyYAML (with its MIT licence), because the Python of a batch system has no packages.
"""

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

BUNDLED_PACKAGES = ("virtcloud", "pbs_hooks", "yaml")
BUNDLED_IMPORT = re.compile(rf"^(\s*)(from|import) ({'|'.join(BUNDLED_PACKAGES)})\b", re.MULTILINE)
HEAD_MODULE = "pbs_hooks.openpbs.hooks.hook_head"
START_MODULE = "pbs_hooks.kit.bundle_start"
LOADER_MODULE = "pbs_hooks.kit.bundle_loader"
HOOK_TAIL = """\
import pbs

if concerns(pbs):
    load(SOURCES, LOADER, ENTRY).handle(@ARGUMENTS@)
pbs.event().accept()
"""
HANDLE_ARGUMENTS = {"server": "pbs, BEGAN", "mom": "pbs"}


def bundle_hook(kind: Literal["server", "mom"]) -> str:
    """Return the hook of the PBS server (``server``) or of its MoMs (``mom``) as one file. Deterministic."""
    return bundle_program(
        f"pbs_hooks.openpbs.hooks.{kind}_hook", HOOK_TAIL.replace("@ARGUMENTS@", HANDLE_ARGUMENTS[kind]), (HEAD_MODULE,)
    )


def bundle_program(entry: str, last: str, first: Sequence[str] = ()) -> str:
    """Return a program that runs in an old Python that has no additional packages.

    The program has three parts: the source of the modules ``first``; the dictionary ``SOURCES`` with the sources of
    ``entry`` and its bundled imports; and the lines ``last``, in which ``load(SOURCES, LOADER, ENTRY)`` returns the
    module ``entry``.
    """
    sources = {name: _read_source(name) for name in _find_modules(entry) | {LOADER_MODULE}}
    root = "_virtcloud_" + hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()[:12]
    renamed = {f"{root}.{name}": BUNDLED_IMPORT.sub(rf"\1\2 {root}.\3", text) for name, text in sources.items()}
    modules = {root: "", **renamed}
    head = "\n\n".join(_read_source(name) for name in (*first, START_MODULE))
    names = "".join(f"{key} = {f'{root}.{name}'!r}\n" for key, name in (("LOADER", LOADER_MODULE), ("ENTRY", entry)))
    listed = "".join(f"    {name!r}: {text!r},\n" for name, text in sorted(modules.items()))
    return f"{_read_licences(sources)}{head}\n\nSOURCES = {{\n{listed}}}\n{names}{last}"


def _find_modules(entry: str) -> set[str]:
    modules: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in modules:
            modules.add(name)
            waiting += [*_parse_imports(name), *filter(None, [name.rpartition(".")[0]])]
    return modules


def _parse_imports(name: str) -> Iterator[str]:
    package = name if _find_file(name).name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(_read_source(name))):
        if isinstance(node, ast.ImportFrom):
            base = f"{package}.{node.module}" if node.level else node.module or ""
            candidates = (base, *(f"{base}.{alias.name}" for alias in node.names))
            yield from filter(_is_bundled, candidates)


def _is_bundled(name: str) -> bool:
    root, _, rest = name.partition(".")
    return root in BUNDLED_PACKAGES and bool(rest) and find_spec(name.rpartition(".")[0]) is not None and _exists(name)


def _exists(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent module is not a package
        return False


def _find_file(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    return Path(spec.origin)


def _read_source(name: str) -> str:
    """Return the source of a module, or "" for a package."""
    file = _find_file(name)
    return "" if file.name == "__init__.py" else file.read_text(encoding="utf-8")


def _read_licences(sources: Sequence[str] | dict[str, str]) -> str:
    if not any(name.startswith("yaml") for name in sources):
        return ""
    files = metadata.files("PyYAML") or []
    text = next(file.read_text() for file in files if file.name == "LICENSE")
    return "# Licence of the modules yaml.*, which are part of PyYAML:\n" + "".join(
        f"# {line}".rstrip() + "\n" for line in text.splitlines()
    )
