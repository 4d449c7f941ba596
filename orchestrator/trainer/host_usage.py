"""The most host memory that this process has used.

Source: proc_pid_status(5), VmHWM and VmRSS; proc_pid_clear_refs(5).
"""

import re
from pathlib import Path


def forget_peak() -> None:
    """Let the peak begin anew from what is used now, where the kernel allows that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_bytes() -> int:
    """Return the most memory that was resident; 0 if the system does not say."""
    return _read("VmHWM")


def used_bytes() -> int:
    """Return the memory that is resident now; 0 if the system does not say."""
    return _read("VmRSS")


def _read(key: str) -> int:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{key}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0
