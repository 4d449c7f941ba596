"""The batch shell's and node.sh's part of a container: what goes into it, and how.

The scripts run whole, as in batch_shell.py; srun passes no variable on but Slurm's own.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from .batch_shell import World, make

pytestmark = pytest.mark.processes
HOSTILE = 'it\'s "$HOME" `touch evil` $(touch evil); \\ *\u00e9'
SRUN = (
    'printf "%s\\n" "$@" >"$WORLD/srun"\n'
    'while [ "$1" != bash ]; do shift; done\n'
    'exec env -i PATH="$PATH" WORLD="$WORLD" PROMPT=image IMAGE=1 SLURM_JOB_ID=7 $MORE "$@"'
)


def boxed(tmp_path: Path, runtime: str, *, more: str = "SLURM_NODEID=0", **job: Any) -> World:
    at = job.pop("at", {})
    (tmp_path / "here").mkdir()
    container = {"runtime": runtime, "env": {"INSIDE": f"{HOSTILE}-${{SLURM_JOB_ID}}"}, **at}
    world = make(
        tmp_path,
        "slurm",
        at={"container": container, "prepend": {"LD_LIBRARY_PATH": "/opt/lib"}},
        python_path=(str(tmp_path / "kept"),),
        **{"container": "docker://torch", "workdir": str(tmp_path / "here"), **job},
    )
    (tmp_path / "srun").write_text(f"#!/bin/bash\n{SRUN.replace('$MORE', more)}\n")
    world.python('env -0 >"$WORLD/seen"', 'pwd >"$WORLD/folder"')
    return world


def seen(world: World) -> dict[str, str]:
    pairs = (world.path / "seen").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def words(world: World) -> list[str]:
    return (world.path / "srun").read_text().splitlines()


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer", "shifter", "podman-hpc", "edf"])
def test_what_counts_gets_in_as_it_is_and_nothing_runs_it(tmp_path: Path, runtime: str) -> None:
    world = boxed(tmp_path, runtime, env={"PROMPT": HOSTILE})
    assert world.go(NCCL_IB_HCA="=mlx5_0", LD_LIBRARY_PATH="/host", PYTHONPATH="/host") == 0
    found = seen(world)
    assert found["PROMPT"] == HOSTILE
    assert found["INSIDE"] == f"{HOSTILE}-7"
    assert found["NCCL_IB_HCA"] == "=mlx5_0"
    assert found["IMAGE"] == "1"
    assert found["LD_LIBRARY_PATH"] == "/opt/lib"
    assert found["PYTHONPATH"] == str(tmp_path / "kept")
    assert found["FSDPQ_CONTAINER"] == "docker://torch"
    assert (world.path / "folder").read_text().strip() == str(tmp_path / "here")
    assert not list(tmp_path.rglob("evil"))


def test_only_what_is_named_gets_in_and_a_secret_is_not_written_down(tmp_path: Path) -> None:
    world = boxed(tmp_path, "podman-hpc", at={"pass_env": ["HF_*", "TOKENIZERS_*"]})
    secrets = {"HF_TOKEN": "hf_abc", "HF_HOME": "/hf", "OTHER": "x", "TOKENIZERS_PARALLELISM": "0"}
    assert world.go(**secrets) == 0
    text = (world.run.attempt(1).root / "container.env").read_text()
    assert 'HF_HOME="/hf"' in text
    assert "TOKENIZERS_PARALLELISM" in text
    assert "OTHER" not in text
    assert "hf_abc" not in text + "".join(words(world))
    assert "--env=HF_TOKEN" in words(world)
    assert oct((world.run.attempt(1).root / "container.env").stat().st_mode)[-3:] == "600"


def test_files_of_nccl_are_mounted_where_they_are_there(tmp_path: Path) -> None:
    topology = tmp_path / "topology.xml"
    topology.touch()
    world = boxed(tmp_path, "apptainer")
    world.go(NCCL_TOPO_FILE=str(topology), NCCL_CONF_FILE=str(tmp_path / "nowhere"))
    assert f"--bind={topology}:{topology}:ro" in words(world)
    assert not [word for word in words(world) if "nowhere" in word]


def test_a_file_of_nccl_with_a_name_that_no_runtime_takes(tmp_path: Path) -> None:
    topology = tmp_path / "a,b.xml"
    topology.touch()
    world = boxed(tmp_path, "apptainer")
    world.go(NCCL_TOPO_FILE=str(topology))
    assert not [word for word in words(world) if "a,b" in word]


def test_mounts_of_pyxis_stand_in_one_word_with_the_jobs_id(tmp_path: Path) -> None:
    world = boxed(tmp_path, "pyxis", at={"mounts": ["/run/x-${SLURM_JOB_ID}", "/a:/b:ro"]})
    world.go()
    (mounts,) = [word for word in words(world) if word.startswith("--container-mounts=")]
    expected = [
        *("/run/x-7:/run/x-7", "/a:/b:ro"),
        f"{tmp_path}/here:{tmp_path}/here",
        f"{tmp_path}/kept:{tmp_path}/kept",
        f"{world.run.root}:{world.run.root}",
        "/work:/work",
    ]
    assert mounts.partition("=")[2].split(",")[:6] == expected
    (names,) = [word for word in words(world) if word.startswith("--container-env=")]
    assert {"FSDPQ_HEAD", "NCCL_DEBUG"} <= set(names.partition("=")[2].split(","))


def test_an_edf_is_toml(tmp_path: Path) -> None:
    world = boxed(tmp_path, "edf", container="base", at={"options": ["com.hooks.x.enabled=true"]})
    world.go()
    path = world.run.attempt(1).root / "container.toml"
    assert f"--environment={path}" in words(world)
    found = tomllib.loads(path.read_text())
    assert found["base_environment"] == "base"
    assert f"{world.run.root}:{world.run.root}" in found["mounts"]
    assert found["annotations"]["com"]["hooks"]["x"]["enabled"] == "true"


def test_another_image_of_that_name_is_told_apart(tmp_path: Path) -> None:
    image = tmp_path / "torch.sif"
    image.touch()
    world = boxed(tmp_path, "apptainer", container=str(image))
    world.go()
    assert seen(world)["FSDPQ_CONTAINER"].startswith(f"{image} of 20")


@pytest.mark.parametrize(
    ("more", "job", "complaint"),
    [
        ("", {}, "the container has no SLURM_NODEID"),
        (
            "SLURM_NODEID=0",
            {"container": {"image": "x", "workdir": "/not/there"}},
            "the working directory is not in the container",
        ),
    ],
)
def test_a_container_that_lacks_something_says_so(
    tmp_path: Path, more: str, job: dict[str, Any], complaint: str
) -> None:
    world = boxed(tmp_path, "apptainer", more=more, **job)
    process = world.start()
    said, _ = process.communicate(timeout=60)
    assert complaint in said
    assert process.returncode == 1
    assert not (world.path / "seen").exists()
    assert json.loads(world.run.attempt(1).exit.read_text())["code"] == 1
