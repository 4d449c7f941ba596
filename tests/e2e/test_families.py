"""Models of many families from local directories, sharded over two ranks of one process group."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from orchestrator.trainer.anatomy import decoder_blocks  # noqa: E402
from tests.e2e.family_models import FAMILIES, LLAMA  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.long]
ROOT = Path(__file__).parents[2]
# 0.25 GiB in fp32: enough to tell a shard from a whole in what a process holds.
BIG = {**LLAMA, "hidden_size": 256, "vocab_size": 128000}
Results = dict[str, dict[str, Any]]


def case(folder: Path, model: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "model": model,
        "data": {"text_files": [str(folder / "text")], "seq_len": 80},
        "steps": 10,
        "global_batch": 2,
        "precision": "fp32",
        **changes,
    }


def save(folder: Path, name: str, config: dict[str, Any], *, shard: str = "5GB") -> str:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases that are all ones tell nothing
            parameter.add_(torch.randn_like(parameter) * 0.02)
    path = folder / "models" / name
    model.save_pretrained(path, max_shard_size=shard)
    return str(path)


def base_without_head(folder: Path, config: dict[str, Any]) -> str:
    """A directory whose weights were saved without the head's prefix, as some published ones."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    path = folder / "models" / "headless"
    model.base_model.save_pretrained(path)
    model.config.save_pretrained(path)
    return str(path)


def make_cases(folder: Path) -> dict[str, dict[str, Any]]:
    paths = {name: save(folder, name, config) for name, config in FAMILIES.items()}
    cases = {name: case(folder, {"path": path}) for name, path in paths.items()}
    shards = save(folder, "shards", FAMILIES["qwen3"], shard="20KB")
    tied = paths["llama-tied"]
    spoil = "model.rotary_emb.inv_freq"
    llama = {"path": paths["llama"]}
    return cases | {
        "shards": case(folder, {"path": shards}),
        "headless": case(folder, {"path": base_without_head(folder, FAMILIES["llama-tied"])}),
        "bf16": case(folder, llama, precision="bf16"),
        "spoiled": case(folder, llama, spoil=spoil),
        "spoiled-unchecked": case(folder, {**llama, "parity_check": "off"}, spoil=spoil),
        "compiled": case(folder, {"path": tied}, compile=True),
        "in-parts": case(folder, {"path": tied}, loss_chunks=4, activation_checkpointing="full"),
        "mixtral": case(folder, {"config": {**LLAMA, "model_type": "mixtral"}}),
        "big": case(folder, {"path": save(folder, "big", BIG)}),
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("families")
    (folder / "text").write_text("".join(f"{n} cubed is {n**3}.\n" for n in range(200)))
    (folder / "cases.json").write_text(json.dumps(make_cases(folder)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.family_program", str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return {path.name: json.loads(path.read_text()) for path in (folder / "results").iterdir()}


@pytest.mark.parametrize("name", [*FAMILIES, "shards", "headless", "in-parts"])
def test_is_the_model_of_from_pretrained(name: str, results: Results) -> None:
    found = results[name]
    assert found["weights"]
    assert found["buffers"]
    assert found["sharded"]
    assert found["logits"]
    assert "has the logits of from_pretrained" in found["said"][1]
    assert 0 < found["loss"] < 10


def test_bf16_is_checked_with_its_own_tolerance(results: Results) -> None:
    assert "has the logits of from_pretrained" in results["bf16"]["said"][1]


def test_a_slightly_wrong_rotation_is_refused(results: Results) -> None:
    assert "inv_freq" in results["spoiled"]["error"]
    assert "parity_check: off" in results["spoiled"]["error"]


def test_the_check_can_be_turned_off(results: Results) -> None:
    found = results["spoiled-unchecked"]
    assert found["said"][1].endswith("model.parity_check is off")
    assert not found["logits"]


def test_experts_train_from_a_configuration(results: Results) -> None:
    assert 0 < results["mixtral"]["loss"] < 10


def test_no_rank_holds_the_whole_model(results: Results) -> None:
    """Each takes its half, and a piece of a file."""
    said = results["big"]["said"][0]
    found = re.search(r"([0-9.]+) GiB read by 2 .* had ([0-9.]+) GiB .*, and ([0-9.]+) GiB", said)
    assert found is not None
    read, peak, before = (float(number) for number in found.groups())
    assert read == pytest.approx(0.25, abs=0.03)
    assert 0.05 < peak - before < 0.75 * read


def test_blocks_without_a_word_from_hugging_face() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LLAMA))
    model._no_split_modules = None
    assert list(decoder_blocks(model)) == ["model.layers.0", "model.layers.1"]
