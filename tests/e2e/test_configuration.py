"""The configuration of a model: never another one under the same weights, never a program run."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from click.testing import CliRunner, Result  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import load  # noqa: E402
from transformers import AutoConfig  # noqa: E402

from orchestrator.cli import main  # noqa: E402
from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.export.configuration import describe, difference  # noqa: E402
from orchestrator.export.skeleton import skeleton  # noqa: E402
from orchestrator.spec.train import ModelSpec  # noqa: E402
from orchestrator.trainer.identity import WHOLE, check_identity  # noqa: E402
from orchestrator.trainer.lenient import LenientPlanner  # noqa: E402
from orchestrator.trainer.model import build_on_meta  # noqa: E402
from tests.e2e.desk import LORA, Desk, losses  # noqa: E402
from tests.e2e.family_models import FAMILIES, LLAMA  # noqa: E402

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="compares with the CPU: set CUDA_VISIBLE_DEVICES="
    ),
]


def change(folder: str, **changes: Any) -> None:
    path = Path(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def export(folder: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["export", str(folder), "-o", str(out), *options])


@pytest.mark.parametrize("tuning", [{}, {"lora": LORA}])
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rms_norm_eps": 0.5}, "rms_norm_eps was 1e-06 and is 0.5"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, "rope_parameters was"),
    ],
)
def test_a_changed_configuration_is_refused(
    desk: Desk, tuning: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    path = desk.model()
    training = desk.build(path, **tuning)
    losses(training, 1)
    folder = desk.publish(training)
    change(path, **changes)
    with pytest.raises(SpecError, match=text):
        desk.build(path, fresh=False, **tuning).state.check_identity(folder)
    refused = export(folder, desk.folder / "out")
    assert refused.exit_code == 1
    assert text in refused.output
    assert not (desk.folder / "out").exists()


def test_what_changes_nothing_is_accepted(desk: Desk) -> None:
    path = desk.model()
    training = desk.build(path)
    losses(training, 1)
    folder = desk.publish(training)
    change(path, transformers_version="4.0.0", dtype="bfloat16", architectures=["Other"])
    desk.build(path, fresh=False).state.check_identity(folder)
    assert export(folder, desk.folder / "out").exit_code == 0


def test_checkpoints_of_older_versions_load(desk: Desk) -> None:
    path = desk.model()
    training = desk.build(path)
    wanted = training.state.identity
    training.state.identity = WHOLE
    folder = desk.publish(training)
    state = desk.build(path, fresh=False).state
    state.check_identity(folder)
    load({"app": state}, checkpoint_id=folder, planner=LenientPlanner())
    assert state.identity == wanted
    assert export(folder, desk.folder / "out").exit_code == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_trainer_and_export_say_the_same(name: str) -> None:
    spec = ModelSpec.model_validate({"config": FAMILIES[name]})
    trained, exported = build_on_meta(spec).config, skeleton(spec).config
    assert describe(trained) == describe(exported)
    assert describe(trained)["vocab_size"] == FAMILIES[name].get("vocab_size")


def test_parts_of_a_configuration() -> None:
    before = {"a": 1, "text_config": {"eps": 1, "gone": 2}, "rope": {"theta": 1}}
    assert difference(before, {**before, "text_config": {"eps": 1.0, "new": 3}}) == ""
    assert difference(before, {**before, "text_config": {"eps": 2}}) == (
        "text_config.eps was 1 and is 2"
    )
    assert difference(before, {**before, "rope": {"theta": 1, "scale": 2}}).startswith("rope was")
    with pytest.raises(SpecError, match="a was 1 and is 2"):
        check_identity('{"config": {"a": 1}}', '{"config": {"a": 2}}')


PROGRAM = "from pathlib import Path\nPath({mark!r}).touch()\n"


@pytest.mark.parametrize("family", ["nonesuch", "siglip_vision_model", "llama"])
def test_no_program_is_run(desk: Desk, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    path, mark = desk.model(), desk.folder / "ran"
    (Path(path) / "evil.py").write_text(PROGRAM.format(mark=str(mark)))
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    change(path, model_type=family, auto_map=classes)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    spec = ModelSpec(path=path)
    if family == "llama":
        build_on_meta(spec)
        losses(desk.build(path), 1)  # asks from_pretrained, too
    else:
        with pytest.raises(SpecError, match="never run"):
            build_on_meta(spec)
        with pytest.raises(SpecError, match="never run"):
            skeleton(spec)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"num_key_value_heads": 0}, "ZeroDivisionError"),
        ({"hidden_size": -4}, "does not make a model"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_act": "nope"}, "nope"),
        ({"rope_scaling": {"rope_type": "nope", "factor": 2.0}}, "nope"),
        ({"quantization_config": "x"}, "AttributeError"),
        ({"model_type": ["llama"]}, "model"),
    ],
)
def test_nonsense_is_one_message(desk: Desk, changes: dict[str, Any], text: str) -> None:
    path = desk.model()
    change(path, **changes)
    for build in (build_on_meta, skeleton):
        with pytest.raises(SpecError, match=text) as caught:
            build(ModelSpec(path=path))
        assert "\n" not in str(caught.value)


def test_nonsense_in_the_job(desk: Desk) -> None:
    with pytest.raises(SpecError, match="ZeroDivisionError"):
        build_on_meta(ModelSpec.model_validate({"config": {**LLAMA, "num_attention_heads": 0}}))


@pytest.mark.parametrize("content", [b"[]", b'{"a":' * 100_000, b"\xff", b"{"])
def test_files_that_do_not_read(desk: Desk, content: bytes) -> None:
    path = desk.model()
    (Path(path) / "config.json").write_bytes(content)
    with pytest.raises(SpecError, match=r"config.json: cannot be read"):
        build_on_meta(ModelSpec(path=path))


def test_a_pipe_is_not_waited_for(desk: Desk) -> None:
    file = Path(desk.model()) / "config.json"
    file.unlink()
    with pytest.raises(SpecError, match=r"config.json: there is no such file"):
        build_on_meta(ModelSpec(path=str(file.parent)))
    os.mkfifo(file)
    with pytest.raises(SpecError, match=r"config.json: is no ordinary file"):
        build_on_meta(ModelSpec(path=str(file.parent)))


def test_families_are_read_as_transformers_reads_them(desk: Desk) -> None:
    path = desk.model("qwen3")
    assert (
        difference(
            describe(AutoConfig.from_pretrained(path)),
            describe(build_on_meta(ModelSpec(path=path)).config),
        )
        == ""
    )
