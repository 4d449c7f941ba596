"""Compiled code that outlives an attempt.

torch.compile keeps its results on the node's own disk, which is gone or another one after a
restart. So the ranks of the first node put theirs into the run directory after the first step, and
the ranks of the next attempt take them from there: one file for each local rank, since what is
compiled for cuda:1 is not found for cuda:0. A file is a pickle of the run's own, as trusted as its
checkpoints.
"""

import hashlib
import os
import pickle
import platform
from pathlib import Path

import torch

from orchestrator.runtime.environment import Environment

_LIMIT = 256 * 2**20

# A cache is worth an attempt's seconds, and nothing more: what is wrong with it stops nobody.
_TROUBLE = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ImportError,
    EOFError,
    pickle.PickleError,
)


def load_caches(env: Environment) -> bool:
    """Take over what an earlier attempt compiled; return whether there was something of use."""
    try:
        return torch.compiler.load_cache_artifacts(_file(env).read_bytes()) is not None
    except _TROUBLE:
        return False


def save_caches(env: Environment) -> bool:
    """Keep what this attempt compiled, if it had to; return whether it was kept."""
    from torch._dynamo.utils import counters

    if env.rank != env.local_rank or not counters["inductor"]["fxgraph_cache_miss"]:
        return False
    try:
        made = torch.compiler.save_cache_artifacts()
        if made is None or len(made[0]) > _LIMIT:
            return False
        _write(_file(env), made[0])
    except _TROUBLE:
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
    new.replace(path)
    for old in path.parent.glob(f"*-{path.stem.rpartition('-')[2]}.bin"):
        if old != path:  # of another GPU or version
            old.unlink(missing_ok=True)


def _file(env: Environment) -> Path:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    text = f"{torch.__version__} {platform.python_version()} {gpu}"
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return env.run.compiled / f"{key}-{env.local_rank}.bin"
