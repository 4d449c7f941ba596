"""The job's Python on a spot machine that the cloud takes back once FLAG is there.

doomed.py FLAG HOST ARGUMENTS: on HOST the monitor finds a metadata service, which has nothing to
say at first; everything else is Python as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.clouds import Imds, serve


def main() -> None:
    """Run Python with the arguments, in the place of this process where it can be."""
    flag, host, *rest = sys.argv[1:]
    if os.uname().nodename != host or "orchestrator.monitor" not in rest:
        os.execv(sys.executable, [sys.executable, *rest])
    service = Imds()
    threading.Thread(target=announce, args=(Path(flag), service), daemon=True).start()
    with serve(service) as here:
        argv = ["setpriv", "--pdeathsig", "KILL", sys.executable, *rest]
        sys.exit(subprocess.call(argv, env={**os.environ, "FSDPQ_METADATA_URL": here.url}))


def announce(flag: Path, service: Imds) -> None:
    """Say that this machine goes, once the flag is there."""
    while not flag.exists():
        time.sleep(0.1)
    service.interrupt()


if __name__ == "__main__":
    main()
