"""A script that knows nothing of fsdpq, and that goes on for an hour over sockets."""

import os
import time
from pathlib import Path

host, pid = os.uname().nodename, os.getpid()
name = os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(pid))
Path(name).write_text(f"{host}:{pid}:{pid} [0] NCCL INFO Using network Socket\n")
time.sleep(3600)
