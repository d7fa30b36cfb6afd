"""Modules that are imported when something of them is first used.

`--help` and refusals need the names of methods and options, and importing torch takes longer than all else that they do
(tests/test_startup.py). An `import` in a function that every step calls costs 10 to 20 µs there, ten in a loop of its
own: this costs what an attribute of a module does.
"""

from __future__ import annotations

import importlib
from typing import Any


class DeferredModule:
    """A module by its name, with the attributes that have been used so far.

    Module-level code of the importer must use none. Type checkers are told by an import under TYPE_CHECKING, of which
    this is the other branch.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value
