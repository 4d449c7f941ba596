"""`fsdpq export`: what it writes is what was trained, whole or not there."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from click.testing import CliRunner, Result  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from orchestrator.cli import main  # noqa: E402
from orchestrator.export.saved import Saved  # noqa: E402
from orchestrator.trainer import training as parts  # noqa: E402
from tests.e2e.desk import LORA, Desk, losses  # noqa: E402
from tests.e2e.family_models import LLAMA  # noqa: E402

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="compares with the CPU: set CUDA_VISIBLE_DEVICES="
    ),
]

ROOT = Path(__file__).parents[2]


def trained(desk: Desk, name: str = "llama", **changes: Any) -> tuple[parts.Training, Path]:
    training = desk.build(desk.model(name), **changes)
    losses(training)
    return training, desk.publish(training)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["export", *(str(argument) for argument in arguments)])


def export(folder: Path, to: Path, *options: object) -> dict[str, Any]:
    result = run(folder, "-o", to, "--json", *options)
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def reload(folder: Path) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


def weights(training: parts.Training) -> dict[str, Any]:
    return {n: p.full_tensor().detach().clone() for n, p in training.model.named_parameters()}


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(32).reshape(2, 16)).logits.clone()


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gemma3", "gpt2", "qwen3", "phi3"])
def test_the_very_weights(desk: Desk, name: str) -> None:
    training, folder = trained(desk, name)
    told = export(folder, desk.folder / "out")
    model = reload(desk.folder / "out")
    wanted = weights(training)
    found = dict(model.named_parameters())
    assert set(found) == set(wanted)
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert torch.equal(logits(model), logits(training.model))
    assert told["parameters"] == sum(value.numel() for value in wanted.values())
    assert (told["step"], told["dtype"], told["kind"]) == (3, "float32", "model")
    if name == "llama-tied":
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_model_drawn_at_random(desk: Desk) -> None:
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}
    training = desk.build("", model={"config": config})
    losses(training)
    export(desk.publish(training), desk.folder / "out")
    wanted = weights(training)
    found = dict(reload(desk.folder / "out").named_parameters())
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_several_files_with_an_index(desk: Desk) -> None:
    training, folder = trained(desk)
    told = export(folder, desk.folder / "out", "--shard-gb", "2e-5")
    index = json.loads((desk.folder / "out" / "model.safetensors.index.json").read_text())
    assert len(told["files"]) > 3
    assert sorted(set(index["weight_map"].values())) == told["files"]
    assert index["metadata"]["total_size"] == told["bytes"]
    found, wanted = dict(reload(desk.folder / "out").named_parameters()), weights(training)
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize(
    ("precision", "options", "dtype"),
    [
        ("bf16", [], "bfloat16"),
        ("bf16", ["--dtype", "fp32"], "float32"),
        ("fp32", ["--dtype", "fp16"], "float16"),
    ],
)
def test_types(desk: Desk, precision: str, options: list[str], dtype: str) -> None:
    training, folder = trained(desk, precision=precision)
    assert export(folder, desk.folder / "out", *options)["dtype"] == dtype
    kind = getattr(torch, dtype)
    found, wanted = dict(reload(desk.folder / "out").named_parameters()), weights(training)
    assert {value.dtype for value in found.values()} == {kind}
    assert all(torch.equal(found[key], wanted[key].to(kind)) for key in wanted)
    assert json.loads((desk.folder / "out" / "config.json").read_text())["dtype"] == dtype


def test_one_file_of_torch(desk: Desk) -> None:
    training, folder = trained(desk, "llama-tied")
    told = export(folder, desk.folder / "out", "--format", "torch")
    assert told["files"] == ["pytorch_model.bin"]
    assert not list((desk.folder / "out").glob("piec*"))
    found = torch.load(desk.folder / "out" / "pytorch_model.bin", weights_only=True)
    wanted = weights(training)
    assert set(found) == set(wanted)
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert torch.equal(logits(reload(desk.folder / "out")), logits(training.model))


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_merged_adapters(desk: Desk, name: str) -> None:
    training, folder = trained(desk, name, lora={**LORA, "dropout": 0.1})
    assert export(folder, desk.folder / "out")["kind"] == "merged model"
    model, wanted = reload(desk.folder / "out"), weights(training)
    query = "model.layers.1.self_attn.q_proj"
    low, high = wanted[f"{query}.lora_A.weight"], wanted[f"{query}.lora_B.weight"]
    assert torch.equal(
        model.get_parameter(f"{query}.weight"), wanted[f"{query}.weight"] + 2.0 * (high @ low)
    )
    assert torch.allclose(logits(model), logits(training.model), atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, by peft
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "layers.0.mlp.down_proj"]])
def test_adapters_for_peft(desk: Desk, targets: Any) -> None:
    peft = pytest.importorskip("peft")
    training, folder = trained(desk, lora={**LORA, "target_modules": targets})
    out = desk.folder / "out"
    told = export(folder, out, "--adapter")
    assert told["files"] == ["adapter_model.safetensors"]
    assert not (out / "config.json").exists()
    base = AutoModelForCausalLM.from_pretrained(training.spec.model.path, dtype=torch.float32)
    plain = logits(base)
    model = peft.PeftModel.from_pretrained(base, out)
    assert not torch.allclose(logits(model), plain, atol=1e-4)
    assert torch.allclose(logits(model), logits(training.model), atol=1e-6)


def test_a_frozen_part_comes_from_its_directory(desk: Desk) -> None:
    training, folder = trained(desk, freeze=["model.embed_tokens.*"])
    export(folder, desk.folder / "out")
    found, wanted = dict(reload(desk.folder / "out").named_parameters()), weights(training)
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_what_lies_beside_the_weights(desk: Desk) -> None:
    base = Path(desk.model())
    (base / "tokenizer.json").write_text("{}")
    (base / "chat_template.jinja").write_text("hello")
    (base / "generation_config.json").write_text('{"temperature": 0.5, "do_sample": true}')
    (base / "secret.txt").write_text("not yours")
    training = desk.build(str(base))
    losses(training, 1)
    assert export(desk.publish(training), desk.folder / "out")["tokenizer"] is True
    names = {path.name for path in (desk.folder / "out").iterdir()}
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "chat_template.jinja", "fsdpq_export.json",
    }  # fmt: skip
    config = json.loads((desk.folder / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["use_cache"] is True
    assert reload(desk.folder / "out").generation_config.temperature == 0.5


def test_the_base_was_moved(desk: Desk) -> None:
    training, folder = trained(desk, lora=LORA)
    base = Path(str(training.spec.model.path))
    moved = base.rename(base.with_name("moved"))
    result = run(folder, "-o", desk.folder / "out")
    assert result.exit_code == 1
    assert f"model.path: {base} is no directory; say with --base" in result.output
    nowhere = run(folder, "-o", desk.folder / "out", "--base", "/nothere")
    assert nowhere.exit_code == 1
    assert "--base: /nothere is no directory" in nowhere.output
    export(folder, desk.folder / "out", "--base", moved)
    other = run(folder, "-o", desk.folder / "more", "--base", desk.model(seed=2))
    assert other.exit_code == 1
    assert "other weights than those" in other.output
    assert not (desk.folder / "more").exists()


def test_a_target_in_the_way(desk: Desk) -> None:
    _, folder = trained(desk)
    out = desk.folder / "out"
    export(folder, out)
    again = run(folder, "-o", out)
    assert again.exit_code == 1
    assert "add --force" in again.output
    export(folder, out, "--force", "--dtype", "bf16")
    assert next(reload(out).parameters()).dtype == torch.bfloat16
    precious = desk.folder / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    refused = run(folder, "-o", precious, "--force")
    assert refused.exit_code == 1
    assert (precious / "thesis.tex").exists()
    assert leftovers(desk) == []


def test_a_target_by_another_name(desk: Desk) -> None:
    _, folder = trained(desk)
    link, there = desk.folder / "link", desk.folder / "there"
    there.mkdir()
    link.symlink_to(there)
    export(folder, link)
    assert link.is_symlink()
    assert (there / "config.json").is_file()
    up = run(folder, "-o", desk.folder / "new" / "..")
    assert up.exit_code == 1
    assert "is there already" in up.output
    assert not (desk.folder / "new").exists()
    assert leftovers(desk) == []


def test_a_tokenizer_that_cannot_be_copied_is_said_before_the_weights(desk: Desk) -> None:
    training, folder = trained(desk)
    os.mkfifo(Path(str(training.spec.model.path)) / "tokenizer.json")
    result = run(folder, "-o", desk.folder / "out")
    assert result.exit_code == 1
    assert "is a named pipe" in result.output
    assert "model.safetensors" not in result.output
    assert leftovers(desk) == []


def leftovers(desk: Desk) -> list[str]:
    return [path.name for path in desk.folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_nothing_is_left_of_half_an_export(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    _, folder = trained(desk)
    plain = Saved.read

    def read(self: Saved, name: str) -> Any:
        if "layers.1" in name:
            raise problem
        return plain(self, name)

    monkeypatch.setattr(Saved, "read", read)
    result = run(folder, "-o", desk.folder / "out")
    assert result.exit_code in (1, 130)
    assert "Traceback" not in result.output
    assert not (desk.folder / "out").exists()
    assert leftovers(desk) == []


def in_a_process(how: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    words = [str(argument) for argument in arguments]
    return subprocess.run(
        [sys.executable, "-m", "tests.e2e.export_program", how, "export", *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_killed_in_the_middle(desk: Desk) -> None:
    _, folder = trained(desk)
    out = desk.folder / "out"
    assert in_a_process("killed", folder, "-o", out).returncode == -9
    assert not out.exists()
    assert len(leftovers(desk)) == 1
    export(folder, out)
    assert leftovers(desk) == []


def test_checkpoints_that_are_not_whole(desk: Desk) -> None:
    _, folder = trained(desk)
    shard = next(folder.glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    result = run(folder, "-o", desk.folder / "out")
    assert result.exit_code == 1
    assert "its hash differs" in result.output
    assert not (desk.folder / "out").exists()


def test_memory_does_not_follow_the_model(desk: Desk) -> None:
    """A model of 0.21 GiB in some 70 weights takes far less."""
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8}
    config = {**LLAMA, **sizes, "num_attention_heads": 8, "num_key_value_heads": 8}
    training = desk.build("", model={"config": config})
    size = 4 * training.num_parameters
    folder = desk.publish(training)
    done = in_a_process("measured", folder, "-o", desk.folder / "out", "--shard-gb", 100)
    assert done.returncode == 0, done.stderr
    assert size > 200e6
    # What libraries take at first use is about 60 MB of it.
    assert int(done.stdout.splitlines()[0]) < 0.6 * size
