"""What the trainer's processes do not import."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

PROGRAM = """
import importlib.util, sys
import json
from orchestrator.trainer.lean import import_transformers
import_transformers()
import orchestrator.trainer.loop
names = ("accelerate", "torchao")
print(json.dumps([[name in sys.modules for name in names],
                  [importlib.util.find_spec(name) is not None for name in names]]))
"""


def test_what_is_installed_beside_is_left_alone_and_can_be_imported_later() -> None:
    for name in ("accelerate", "torchao"):
        pytest.importorskip(name)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[[false, false], [true, true]]"
