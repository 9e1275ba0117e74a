"""What a migration does, as one short text: two files have the same one if they differ in form only.

Left out are comments, docstrings, layout, quotes, the order of imports, and where the migration stands in the graph
(`dependencies`, `run_before`, `replaces`), which squashing changes in many files without changing what any of them did.
The tree is written down by ourselves, because `ast.dump` writes it otherwise on each Python.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

#: Of this way to write a tree down. A digest that was made in another way says nothing about a change.
SCHEME = "1"

_PLACE = {"dependencies", "run_before", "replaces"}
_FORM = {"ctx", "kind", "type_comment"}


def digest(source: str) -> str:
    """The digest of a migration's source, with the scheme in front."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an odd escape Python has told when it imported the file
        tree = ast.parse(source)
    return f"{SCHEME}:{sha256(ascii(_module(tree)).encode()).hexdigest()}"


def is_comparable(digest: str) -> bool:
    """Was it made by this scheme?"""
    return digest.startswith(f"{SCHEME}:")


def _module(tree: ast.Module) -> Any:
    imports = {ascii(_written(one)) for statement in tree.body for one in _imports(statement)}
    return sorted(imports), _written([one for one in tree.body if not isinstance(one, (ast.Import, ast.ImportFrom))])


def _imports(statement: ast.stmt) -> Iterator[ast.stmt]:
    """One import for each name."""
    match statement:
        case ast.Import(names=names):
            yield from (ast.Import([name]) for name in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            yield from (ast.ImportFrom(module, [name], level) for name in names)


def _written(node: Any) -> Any:
    match node:
        case ast.Constant(value=value):
            return type(value).__name__, repr(value)
        case ast.AST():
            fields = [(name, _written(value)) for name, value in ast.iter_fields(node) if name not in _FORM]
            # What is empty is missing on some versions of Python.
            return type(node).__name__, *(field for field in fields if field[1] not in (None, []))
        case list():
            return [_written(one) for one in node if not _does_nothing(one)]
        case _:
            return node


def _does_nothing(node: Any) -> bool:
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in _PLACE
        case ast.AugAssign(target=ast.Name(id=name)):
            return name in _PLACE
        case _:
            return False
