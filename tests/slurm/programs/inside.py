"""The counter; its rank 0 writes down what the container lets through.

    inside.py ARGUMENTS OF counter.py

Into inside.json of the attempt: the environment, and where fsdpq's package comes from.
"""

import json
import os
import runpy
from pathlib import Path

import orchestrator

if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        found = {
            "environment": dict(os.environ),
            "package": orchestrator.__file__,
            "folder": str(Path.cwd()),
            "umask": os.umask(0o077),
        }
        Path(os.environ["FSDPQ_ATTEMPT_DIR"], "inside.json").write_text(json.dumps(found))
    runpy.run_path(str(Path(__file__).with_name("counter.py")), run_name="__main__")
