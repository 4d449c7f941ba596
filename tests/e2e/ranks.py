"""Three training steps of a small Llama on several ranks, for each of many cases.

The ranks are forks of one process that has imported everything, since imports take most of the time
of such a small run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_cases(
    folder: Path, cases: dict[str, tuple[int, dict[str, Any]]], *, timeout_s: float = 240
) -> dict[str, dict[str, Any]]:
    """Return what each case (ranks, changes of the configuration) gave; works in ``folder``."""
    (folder / "text").write_text("".join(f"{n} cubed is {n**3}.\n" for n in range(100)))
    configs = {name: (size, config(folder, changes)) for name, (size, changes) in cases.items()}
    (folder / "cases.json").write_text(json.dumps(configs))
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.rank_program", "cases.json"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",  # forks cannot share a GPU
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "FSDPQ_RUN_DIR": str(folder),
            "FSDPQ_ATTEMPT": "1",
        },
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return {name: json.loads((folder / name).read_text()) for name in cases}


def config(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "vocab_size": 260,
            }
        },
        "data": {"text_files": [str(folder / "text")], "seq_len": 16},
        "steps": 10,
        "global_batch": 8,
        "micro_batch": 1,
        "precision": "fp32",
        "timeouts_s": {"init": 60},
        **changes,
    }
