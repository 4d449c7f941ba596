"""SmolLM2-135M on the real cluster: loaded, tuned through a preemption, exported, and it talks.

Two fine-tunes side by side, one of the whole model and one of adapters, each over two hosts; one
urgent job ends both in the middle.
"""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from orchestrator.rundir.layout import RunLayout  # noqa: E402
from orchestrator.spec.train import DataSpec  # noqa: E402
from tests.slurm.cluster import Cluster  # noqa: E402
from tests.slurm.user import FsdpqUser, attempts, last_step, steps  # noqa: E402
from tests.smollm2 import convert, find_gguf  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.long]
ROOT = Path(__file__).parents[2]
START_S = 240
STEPS = 6
LORA = {"rank": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}


@pytest.fixture
def base(user: FsdpqUser) -> Path:
    """The model where the user can read it."""
    try:
        find_gguf()
    except FileNotFoundError as problem:
        pytest.skip(str(problem))
    folder = user.home / "smollm2"
    convert(folder)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    return folder


def train(base: Path, user: FsdpqUser, **changes: Any) -> dict[str, Any]:
    text = user.home / "text"
    user.write(text, (ROOT / "LICENSE").read_text()[:4000])
    data: dict[str, Any] = {"text_files": [str(text)], "seq_len": 32}
    if "tokenizer" in DataSpec.model_fields:
        data["tokenizer"] = "model"
    return {
        "model": {"path": str(base)},
        "data": data,
        "steps": STEPS,
        "global_batch": 2,
        "lr": 1e-4,
        "lr_schedule": "constant",
        "precision": "fp32",
        "checkpoint": {"every_steps": 100},
        **changes,
    }


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def talk(folder: Path) -> str:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = tokenizer("Subject to the terms and conditions of", return_tensors="pt")
    answer = model.generate(**asked, max_new_tokens=8, do_sample=False)[0]
    text: str = tokenizer.decode(answer[asked["input_ids"].shape[1] :])
    return text


def weights(folder: Path) -> dict[str, Any]:
    return dict(AutoModelForCausalLM.from_pretrained(folder, dtype="auto").named_parameters())


@pytest.mark.timeout(900)
def test_fine_tuned_through_a_preemption(cluster: Cluster, user: FsdpqUser, base: Path) -> None:
    # A save of the whole state is 1.6 GB, and this machine's disk is shared.
    cluster.apply(dataclasses.replace(cluster.config, grace_s=90))
    place: dict[str, Any] = {"nodes": 2, "gpus_per_node": 1, "notice": {"lead_s": 90}}
    whole = user.submit("whole", train=train(base, user), **place)
    lora = user.submit("lora", train=train(base, user, lora=LORA, lr=1e-3), **place)
    user.start("watch", "whole", "lora", "--every", "1")
    both = (whole, lora)
    cluster.wait_for(lambda: all(last_step(r) >= 2 for r in both), START_S, "both train")
    cluster.submit_prod(nodes=4, seconds=2)
    cluster.wait_for(lambda: all(attempts(r) >= 2 for r in both), START_S, "both are back")
    cluster.wait_for(lambda: all(r.finished.exists() for r in both), START_S, "both finish")
    for run in both:
        check_run(run, user)
    newest = [run.checkpoints / f"step-{STEPS}" for run in both]
    assert size(newest[0]) > 1.5e9  # 135 million parameters and two moments, in fp32
    assert size(newest[1]) < 50e6
    check_exports(base, user)


def check_run(run: RunLayout, user: FsdpqUser) -> None:
    """Nothing was lost, and it is the model of from_pretrained that was trained."""
    rows = user.status(run.name)["attempts"]
    assert [row["steps_lost"] for row in rows] == [0] * len(rows)
    assert [line["step"] for line in steps(run)] == list(range(1, STEPS + 1))
    losses = [line["loss"] for line in steps(run)]
    assert sum(losses[-3:]) < sum(losses[:3])
    said = user.fsdpq("logs", run.name, "--attempt", "1").stdout
    assert "has the logits of from_pretrained" in said
    assert "read by 2 ranks" in said


def check_exports(base: Path, user: FsdpqUser) -> None:
    """The exported directories load, hold what was trained, and talk."""
    before = weights(base)
    for name in ("whole", "lora"):
        out = user.home / f"{name}-out"
        user.fsdpq("export", name, "-o", str(out), "--dtype", "bf16", timeout=240)
        after = weights(out)
        assert set(after) == set(before)
        changed = {key for key in after if not torch.equal(after[key], before[key])}
        projections = {key for key in after if any(name in key for name in LORA["target_modules"])}  # type: ignore[attr-defined]
        assert changed
        assert (changed <= projections) == (name == "lora")
        assert talk(out)
    adapter = user.home / "adapter"
    user.fsdpq("export", "lora", "--adapter", "-o", str(adapter), timeout=240)
    assert (adapter / "adapter_config.json").exists()
