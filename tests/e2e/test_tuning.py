"""Adapters and frozen parts, on one rank: what trains, what is saved, what is refused."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.distributed.checkpoint.filesystem import FileSystemReader  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import load  # noqa: E402

from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.trainer import parity  # noqa: E402
from orchestrator.trainer import training as parts  # noqa: E402
from orchestrator.trainer.lenient import LenientPlanner  # noqa: E402
from orchestrator.trainer.lora import is_adapter  # noqa: E402
from tests.e2e.desk import LORA, Desk, losses  # noqa: E402
from tests.e2e.family_models import LLAMA  # noqa: E402

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="compares with the CPU: set CUDA_VISIBLE_DEVICES="
    ),
]


def weights(training: parts.Training) -> dict[str, Any]:
    return {n: p.full_tensor().detach().clone() for n, p in training.model.named_parameters()}


def resume(desk: Desk, folder: Path, path: str, **changes: Any) -> parts.Training:
    training = desk.build(path, fresh=False, **changes)
    training.state.check_identity(folder)
    load({"app": training.state}, checkpoint_id=folder, planner=LenientPlanner())
    return training


def test_adapters_alone_change(desk: Desk) -> None:
    training = desk.build(desk.model(), lora=LORA)
    before = weights(training)
    found = losses(training, 8)
    assert found[-1] < found[0]
    after = weights(training)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if is_adapter(name)}
    assert len(changed) == 2 * 2 * 7  # layers x matrices x linear layers of a block
    assert len(training.state.optimizer.state) == len(changed)


def test_fresh_adapters_change_nothing(desk: Desk) -> None:
    path = desk.model()
    assert losses(desk.build(path), 1) == losses(desk.build(path, lora=LORA), 1)


def test_targets_by_name(desk: Desk) -> None:
    training = desk.build(desk.model(), lora={**LORA, "target_modules": ["q_proj", "mlp.up_proj"]})
    adapted = {
        name.split(".lora_")[0].split(".", 3)[3] for name in weights(training) if is_adapter(name)
    }
    assert adapted == {"self_attn.q_proj", "mlp.up_proj"}


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "nonesuch", "proj"])
def test_what_cannot_be_adapted(desk: Desk, target: str) -> None:
    with pytest.raises(SpecError, match=f"{target} is no linear layer.*q_proj"):
        desk.build(desk.model(), lora={"target_modules": [target]})


@pytest.mark.parametrize("name", ["llama-tied", "gemma2", "qwen3", "phi3", "starcoder2"])
def test_families(desk: Desk, name: str) -> None:
    found = losses(desk.build(desk.model(name), lora=LORA), 10)
    assert sum(found[5:]) < sum(found[:5])


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(
    "changes",
    [
        {"activation_checkpointing": "full"},
        {"activation_checkpointing": "selective"},
        {"compile": True},
        {"micro_batch": 1},
        {"loss_chunks": 4},
    ],
)
def test_features_change_nothing(desk: Desk, changes: dict[str, Any]) -> None:
    path = desk.model()
    wanted = losses(desk.build(path, lora=LORA))
    assert losses(desk.build(path, lora=LORA, **changes)) == pytest.approx(wanted, rel=1e-5)


def test_dropout_is_computed_again_as_it_was(desk: Desk) -> None:
    path = desk.model()
    lora = {**LORA, "dropout": 0.5}
    dropped = losses(desk.build(path, lora=lora))
    again = losses(desk.build(path, lora=lora, activation_checkpointing="full"))
    assert again == pytest.approx(dropped, rel=1e-5)
    assert dropped[1:] != losses(desk.build(path, lora=LORA))[1:]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"lora": {**LORA, "dropout": 0.1}}),
        ("llama-tied", {"lora": LORA}),
        ("llama-tied", {"freeze": ["model.embed_tokens.*"]}),
        ("llama", {"freeze": ["model.embed_tokens.*", "*.layers.0.*"]}),
        ("llama", {}),
    ],
)
def test_goes_on_bit_for_bit(desk: Desk, name: str, changes: dict[str, Any]) -> None:
    path = desk.model(name)
    training = desk.build(path, **changes)
    losses(training)
    folder = desk.save(training)
    wanted = losses(training)  # first: both draw from the same generators
    assert losses(resume(desk, folder, path, **changes)) == wanted


def test_a_checkpoint_holds_what_trains_alone(desk: Desk) -> None:
    training = desk.build(desk.model("llama-tied"), lora=LORA)
    losses(training, 1)
    keys = FileSystemReader(desk.save(training)).read_metadata().state_dict_metadata
    saved = {key for key in keys if key.startswith("app.model.")}
    assert saved
    assert all(is_adapter(key) for key in saved)


def test_a_frozen_part_of_a_drawn_model_is_saved(desk: Desk) -> None:
    """There is no directory that it could be read from."""
    spec: dict[str, Any] = {"model": {"config": LLAMA}, "freeze": ["model.embed_tokens.*"]}
    training = desk.build("", **spec)
    losses(training)
    folder = desk.save(training)
    keys = FileSystemReader(folder).read_metadata().state_dict_metadata
    assert "app.model.model.embed_tokens.weight" in keys
    assert losses(resume(desk, folder, "", **spec)) == losses(training)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"lora": LORA}, {"lora": {**LORA, "rank": 8}}, "^lora: rank was 4 and is 8[.]"),
        ({"lora": LORA}, {"lora": {**LORA, "alpha": 16}}, "alpha was 8.0 and is 16.0"),
        ({"lora": LORA}, {}, "the job asks for none"),
        ({}, {"lora": LORA}, "the checkpoint has none"),
        (
            {"freeze": ["*.layers.0.*"]},
            {"freeze": ["*.layers.1.*"]},
            "12 parameters train, and now 12 other",
        ),
        ({"freeze": ["*.layers.0.*"]}, {}, "all parameters would"),
        ({}, {"freeze": ["*.layers.0.*"]}, "all parameters train"),
        ({}, {"seed": 5}, "^seed: was 0 and is 5[.]"),
        ({}, {"lr": 0.02}, "^lr: was 0.01 and is 0.02[.]"),
        ({}, {"global_batch": 8}, "^global_batch: was 4 and is 8[.]"),
        ({"lora": LORA}, {"lora": LORA, "precision": "bf16"}, "^precision: was 'fp32'"),
    ],
)
def test_another_training_is_refused(
    desk: Desk, before: dict[str, Any], after: dict[str, Any], text: str
) -> None:
    path = desk.model()
    training = desk.build(path, **before)
    losses(training, 1)
    folder = desk.save(training)
    with pytest.raises(SpecError, match=text):
        resume(desk, folder, path, **after)


def test_other_weights_below_the_adapters_are_refused(desk: Desk) -> None:
    path = Path(desk.model())
    training = desk.build(str(path), lora=LORA)
    losses(training, 1)
    folder = desk.save(training)
    other = Path(desk.model(seed=2))
    (other / "model.safetensors").replace(path / "model.safetensors")
    with pytest.raises(SpecError, match="weights there are not those"):
        resume(desk, folder, str(path), lora=LORA)


def test_a_moved_directory_is_the_same(desk: Desk) -> None:
    path = Path(desk.model())
    training = desk.build(str(path), lora=LORA)
    losses(training, 1)
    folder = desk.save(training)
    moved = path.rename(path.with_name("moved"))
    resume(desk, folder, str(moved), lora=LORA)


@pytest.mark.parametrize(
    ("freeze", "text"), [(["nonesuch.*"], "nonesuch"), (["*"], "nothing is left")]
)
def test_patterns_that_make_no_sense(desk: Desk, freeze: list[str], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        desk.build(desk.model(), freeze=freeze)


def test_frozen_parts_stay(desk: Desk) -> None:
    training = desk.build(desk.model(), freeze=["model.embed_tokens.*", "*.layers.0.*"])
    before = weights(training)
    losses(training)
    after = weights(training)
    same = {name for name in before if torch.equal(before[name], after[name])}
    frozen = {n for n in before if n.startswith(("model.embed_tokens.", "model.layers.0."))}
    assert same == frozen
    assert training.num_trained == sum(before[n].numel() for n in before if n not in frozen)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("_MOST_PARAMETERS", 1e3, "billion parameters are too many for one process"),
        ("_free", lambda world: {"host memory": 1e3}, "of host memory rank 0 has 0.0 GiB free"),
    ],
)
def test_what_is_not_compared_is_said(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, text: str
) -> None:
    monkeypatch.setattr(parity, name, value)
    losses(desk.build(desk.model()))
    assert text in desk.said[-1]
    assert "is not checked" in desk.said[-1]


def test_the_comparison_leaves_no_trace(desk: Desk) -> None:
    path = desk.model("llama-tied")
    compared = losses(desk.build(path))
    assert "has the logits" in desk.said[-1]
    model = {"path": path, "parity_check": "off"}
    assert losses(desk.build(path, model=model)) == compared
