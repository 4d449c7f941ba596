import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.spec.train import (
    TrainSpec,
    check_batch,
    check_local_copy,
    load_train,
    mesh_shape,
)

SMALLEST: dict[str, Any] = {
    "model": {"config": {"model_type": "llama"}},
    "data": {"text_files": ["text"], "seq_len": 32},
    "steps": 10,
    "global_batch": 8,
}


def write(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "train.json"
    path.write_text(json.dumps({**SMALLEST, **changes}))
    return path


def test_defaults_survive_a_round_trip(tmp_path: Path) -> None:
    spec = load_train(write(tmp_path))
    again = TrainSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert spec.checkpoint.keep_last == 2
    assert spec.deterministic


def test_checkpoints_when_they_are_worth_it(tmp_path: Path) -> None:
    spec = load_train(write(tmp_path, checkpoint={"every_steps": "auto", "mtbf_s": 7200}))
    assert TrainSpec.model_validate_json(spec.model_dump_json()) == spec
    assert (spec.checkpoint.every_steps, spec.checkpoint.mtbf_s) == ("auto", 7200.0)


@pytest.mark.parametrize(
    "place", ["/scratch/runs/llama", "/scratch/runs/./llama/", "/scratch/runs/llama/x"]
)
def test_a_local_copy_in_the_run_directory(tmp_path: Path, place: str) -> None:
    spec = load_train(write(tmp_path, checkpoint={"local_copy": place}))
    with pytest.raises(SpecError, match=r"train\.checkpoint\.local_copy: .* /scratch/runs/llama,"):
        check_local_copy(spec.checkpoint.local_copy, PurePosixPath("/scratch/runs/llama"))
    check_local_copy(spec.checkpoint.local_copy, PurePosixPath("/scratch/runs/llama-2"))
    check_local_copy(None, PurePosixPath("/scratch/runs/llama"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stepz": 3}, "is no key here"),
        ({"steps": 0}, "steps"),
        ({"model": {}}, "config:"),
        ({"model": {"config": {}, "path": "x"}}, "not both"),
        ({"model": {"config": {"layers": 3}}}, "model_type"),
        ({"global_batch": 7, "micro_batch": 2}, "multiple of micro_batch"),
        ({"checkpoint": {"keep_last": 1}}, r"keep_last: must be 2 or more: the newest .*damaged"),
        ({"checkpoint": {"keep_last": True}}, "keep_last: must be a whole number"),
        ({"compile": "yes"}, r"compile: must be true or false \(given: 'yes'\)"),
        ({"checkpoint": {"every_steps": 0}}, "checkpoint.every_steps: must be a whole number"),
        ({"checkpoint": {"every_steps": True}}, "or auto"),
        ({"checkpoint": {"every_steps": 10.0}}, "or auto"),
        ({"checkpoint": {"every_steps": "often"}}, r"or auto \(given: 'often'\)"),
        ({"checkpoint": {"mtbf_s": 0}}, "mtbf_s"),
        ({"checkpoint": {"local_copy": "ckpt"}}, r"local_copy: must be an absolute .*'ckpt'"),
        ({"checkpoint": {"local_copy": "/dev/shm/../x"}}, "local_copy: must be an absolute path"),
        ({"checkpoint": {"local_copy": "/"}}, "local_copy: must be an absolute path"),
        ({"checkpoint": {"local_copy": 7}}, "local_copy: must be an absolute path"),
        ({"checkpoint": {"local_copy": "/local/$USER"}}, "no variable is expanded"),
        ({"checkpoint": {"local_copy": "/a\nb"}}, "control character"),
        ({"checkpoint": {"max_interval_s": -1}}, "max_interval_s"),
        ({"lr": 0}, "lr"),
        ({"data": {"text_files": [], "seq_len": 32}}, "data: give one of text_files"),
        (
            {"data": {"text_files": ["a"], "jsonl": ["b"], "seq_len": 32}},
            "data: text_files and jsonl are both given; give one of .* as a list under sources",
        ),
        (
            {"data": {"dataset": "a", "sources": [{"jsonl": ["b"]}], "seq_len": 32}},
            "data: dataset and sources are both given",
        ),
        (
            {"eval": {"text_files": ["a"], "jsonl": ["b"], "shards": ["c"]}},
            "eval: text_files, jsonl and shards are all given",
        ),
        (
            {"data": {"sources": [{"jsonl": ["b"], "dataset": "a"}], "seq_len": 32}},
            r"data\.sources\.0: jsonl and dataset are both given; give one of",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        load_train(write(tmp_path, **changes))


@pytest.mark.parametrize("content", ["", "[]", "{", "3"])
def test_a_file_that_is_no_json_object(tmp_path: Path, content: str) -> None:
    path = tmp_path / "train.json"
    path.write_text(content)
    with pytest.raises(SpecError, match=r"train\.json"):
        load_train(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        load_train(tmp_path / "train.json")


@pytest.mark.parametrize(("world", "micro", "each"), [(1, 1, 8), (2, 2, 2), (8, 1, 1), (4, 2, 1)])
def test_batch_is_shared_out(tmp_path: Path, world: int, micro: int, each: int) -> None:
    assert check_batch(load_train(write(tmp_path, micro_batch=micro)), world) == each


def test_batch_that_cannot_be_shared_out(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="for a new run, global_batch 6 or 12"):
        check_batch(load_train(write(tmp_path, micro_batch=2)), 3)
    with pytest.raises(SpecError, match=r"for a new run, global_batch 16$"):
        check_batch(load_train(write(tmp_path)), 16)


def test_mesh(tmp_path: Path) -> None:
    assert mesh_shape(load_train(write(tmp_path)), 8) == (1, 8)
    assert mesh_shape(load_train(write(tmp_path, mesh={"replicate": 2})), 8) == (2, 4)
    for mesh in ({"replicate": 3}, {"replicate": 2, "shard": 2}, {"replicate": 16}):
        with pytest.raises(SpecError, match="ranks"):
            mesh_shape(load_train(write(tmp_path, mesh=mesh)), 8)


def test_copies_that_follow_the_number_of_ranks(tmp_path: Path) -> None:
    auto = load_train(write(tmp_path, mesh={"replicate": "auto", "shard": 4}))
    assert [mesh_shape(auto, world) for world in (4, 8, 12)] == [(1, 4), (2, 4), (3, 4)]
    for world in (2, 6):
        with pytest.raises(SpecError, match="ranks"):
            mesh_shape(auto, world)


def test_a_mesh_by_name(tmp_path: Path) -> None:
    assert mesh_shape(load_train(write(tmp_path, mesh="fsdp")), 8) == (1, 8)
    with pytest.raises(SpecError, match="needs a size for the shard groups; add shard"):
        mesh_shape(load_train(write(tmp_path, mesh="hsdp")), 8)
    with pytest.raises(SpecError, match="must be fsdp, hsdp, or sizes such as"):
        load_train(write(tmp_path, mesh="ddp"))
    for copies in (0, True, "many", 1.5):
        with pytest.raises(SpecError, match="1 to 1000000000000, or auto"):
            load_train(write(tmp_path, mesh={"replicate": copies}))


def test_paths_are_made_absolute(tmp_path: Path) -> None:
    spec = load_train(write(tmp_path, model={"path": "m"})).relative_to(tmp_path)
    assert spec.model.path == str(tmp_path / "m")
    assert spec.data.text_files == (str(tmp_path / "text"),)
