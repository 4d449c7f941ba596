"""Imports transformers without the packages that it imports wherever it finds them.

torchao, accelerate and others are there for one thing or another, and `transformers.modeling_utils`
imports them at each start: 1 to 2 s on a local disk, more on a shared file system, once per rank
and attempt. FP8 and whoever else needs them imports them by their names.
"""

import importlib
import sys

_NOT_NEEDED = ("accelerate", "datasets", "peft", "sklearn", "torchao", "torchvision")


def import_transformers() -> None:
    """Import transformers' models as if the packages that they can do without were not installed.

    For the trainer's own processes. A package that is there already stays.
    """
    hidden = [name for name in _NOT_NEEDED if name not in sys.modules]
    # Python's word for "not there": find_spec answers None, and an import fails.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        importlib.import_module("transformers.modeling_utils")
    finally:
        for name in hidden:
            del sys.modules[name]
