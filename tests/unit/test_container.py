"""What a job's `container:` and its site's make of the plan and the scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.errors import ProfileError, SpecError
from orchestrator.keys.fields import validate
from orchestrator.keys.mounts import mount, uncovered
from orchestrator.launchplan.plan import LaunchPlan, check_mounts
from orchestrator.launchplan.script import render
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import load_job

from .builders import SITE, plan, site, spec

IMAGE = "/images/torch.sif"
TRAIN = {
    "model": {"path": "/models/llama"},
    "data": {"text_files": ["/data/a/*.txt", "/data/b/part-[0-9].txt", "/one.txt"], "seq_len": 8},
    "steps": 1,
    "global_batch": 1,
}


def boxed(runtime: str = "pyxis", *, at: dict[str, Any] | None = None, **job: Any) -> LaunchPlan:
    """A plan of a job in a container; ``at`` is more of the site's `container:`."""
    container = {"runtime": runtime, **(at or {})}
    return plan(spec(**{"container": IMAGE, **job}), site(container=container))


def complaint(runtime: str = "pyxis", **job: Any) -> str:
    with pytest.raises(SpecError) as caught:
        boxed(runtime, **job)
    return str(caught.value)


# --- the job file -----------------------------------------------------------------------------


def test_an_image_alone_is_enough() -> None:
    assert spec(container=IMAGE).container == spec(container={"image": IMAGE}).container


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("torch.sif", "{base}/torch.sif"),
        ("images/torch.sqsh", "{base}/images/torch.sqsh"),
        ("./sandbox", "{base}/sandbox"),
        ("/images/torch.sqsh", "/images/torch.sqsh"),
        ("my.toml", "{base}/my.toml"),
        ("pytorch", "pytorch"),
        ("nvcr.io#nvidia/pytorch:24.05-py3", "nvcr.io#nvidia/pytorch:24.05-py3"),
        ("docker://pytorch/pytorch:2.11", "docker://pytorch/pytorch:2.11"),
        ("docker:nersc/pytorch:24.06", "docker:nersc/pytorch:24.06"),
    ],
)
def test_a_file_is_named_by_its_whole_path_and_a_name_in_a_registry_is_left(
    tmp_path: Path, given: str, expected: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"site": "x", "script": "t.py", "container": given}))
    found = load_job(path).container
    assert found is not None
    assert found.image == expected.format(base=tmp_path)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({}, "container.image: is required"),
        ("", "must be the path of an image"),
        ("a b", "must be the path of an image"),
        ("$(id)", "must be the path of an image"),
        ("-x", "must be the path of an image"),
        ({"image": "a", "mount": []}, "Did you mean 'mounts'?"),
        ({"image": "a", "mounts": ["data"]}, "must be an absolute path"),
        ({"image": "a", "mounts": ["/a b"]}, "can stand in a path of a mount"),
        ({"image": "a", "mounts": ["/a$(id)"]}, "can stand in a path of a mount"),
        ({"image": "a", "mounts": ["/a,/b"]}, "can stand in a path of a mount"),
        ({"image": "a", "mounts": ["/a:/b:rw"]}, "HOST:CONTAINER:ro"),
        ({"image": "a", "mounts": ["/a:"]}, "HOST:CONTAINER:ro"),
        ({"image": "a", "workdir": "here"}, "must be an absolute path in the container"),
    ],
)
def test_what_is_refused(container: Any, words: str) -> None:
    with pytest.raises(SpecError, match="container") as caught:
        spec(container=container)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["", "A B", "*", "A*B", "$(id)"])
def test_what_a_site_cannot_pass(name: str) -> None:
    data = {**SITE, "container": {"runtime": "pyxis", "pass_env": [name]}}
    with pytest.raises(ProfileError, match="name of a variable, or its beginning"):
        validate(SiteProfile, data, where=Path("site.yaml"), error=ProfileError)


# --- the site ---------------------------------------------------------------------------------


def test_a_site_that_says_nothing_of_containers() -> None:
    with pytest.raises(SpecError) as caught:
        plan(spec(container=IMAGE))
    assert "`extends: here`" in str(caught.value)
    assert "container: {runtime: pyxis}" in str(caught.value)


def test_the_local_site_starts_none() -> None:
    with pytest.raises(SpecError, match="container: the site local starts none"):
        plan(spec(container=IMAGE), site(scheduler="local", container={"runtime": "apptainer"}))


def test_a_job_without_one_runs_on_the_host_also_where_the_site_has_them() -> None:
    made = plan(spec(), site(container={"runtime": "pyxis", "mounts": ["/a"]}))
    assert made.container is None
    assert made.mounts == ()
    assert "container" not in "".join(render(made).values()).replace("because a container", "")


def test_the_environment_of_the_way_to_start() -> None:
    here = site(
        container={"runtime": "pyxis"}, env_host={"X": "host"}, env_container={"X": "container"}
    )
    assert dict(plan(spec(), here).env)["X"] == "host"
    assert dict(plan(spec(container=IMAGE), here).env)["X"] == "container"
    assert dict(plan(spec(container=IMAGE, env={"X": "job"}), here).env)["X"] == "job"


def test_what_is_set_inside_only_gives_way_to_the_job() -> None:
    made = boxed(at={"env": {"X": "site", "Y": "site"}}, env={"X": "job"})
    assert made.container is not None
    assert made.container.env == (("Y", "site"),)


def test_the_python_is_the_images() -> None:
    assert boxed().python == "python3"
    assert boxed(python="/opt/python").python == "/opt/python"


def test_a_plan_is_read_back_and_one_of_an_older_version_too() -> None:
    made = boxed(at={"mounts": ["/a:/b:ro"], "env": {"X": "1"}})
    assert LaunchPlan.from_json(json.loads(json.dumps(made.to_json()))) == made
    older = plan().to_json()
    del older["container"]
    assert LaunchPlan.from_json(older) == plan()


# --- mounts -----------------------------------------------------------------------------------


def test_run_working_directory_and_script_are_shown_where_they_are() -> None:
    assert boxed().mounts == (
        "/home/alice:/home/alice",
        "/runs/llama:/runs/llama",
        "/work:/work",
    )


def test_what_the_trainer_reads_is_shown_too() -> None:
    made = boxed(script=None, train=TRAIN, workdir="/runs")
    assert made.mounts == (
        "/data/a:/data/a",
        "/data/b:/data/b",
        "/models/llama:/models/llama",
        "/runs:/runs",
    )


def test_what_lies_in_a_mount_is_not_mounted_again() -> None:
    made = boxed(container={"image": IMAGE, "mounts": ["/runs", "/home:/h", "/work:/work:ro"]})
    assert made.mounts == (
        "/runs:/runs",
        "/home:/h",
        "/work:/work:ro",
        "/home/alice:/home/alice",
    )


def test_the_jobs_mount_replaces_the_sites_at_the_same_place() -> None:
    made = boxed(at={"mounts": ["/a:/x", "/b"]}, container={"image": IMAGE, "mounts": ["/c:/x:ro"]})
    assert made.mounts[:2] == ("/c:/x:ro", "/b:/b")


def test_a_working_directory_of_the_container_needs_none_of_the_host() -> None:
    made = boxed(container={"image": IMAGE, "workdir": "/opt/app"})
    assert "/home/alice:/home/alice" not in made.mounts
    assert "cd -- /opt/app ||" in render(made)["node.sh"]


def test_a_path_that_no_runtime_can_be_told_of() -> None:
    with pytest.raises(SpecError, match=r"'/a b' must be mounted, and only letters"):
        check_mounts(boxed(workdir="/a b"))
    above = {"image": IMAGE, "mounts": ["/runs", "/work", "/a"]}
    check_mounts(boxed(container=above, workdir="/a/b c"))


def test_shifter_mounts_only_what_is_asked_for() -> None:
    assert boxed("shifter").mounts == ()
    given = {"image": IMAGE, "mounts": ["/a:/b"]}
    assert boxed("shifter", container=given).mounts == ("/a:/b",)


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("/a", "/a:/a"),
        ("/a:/b", "/a:/b"),
        ("/a:/b:ro", "/a:/b:ro"),
        ("/run/x-${SLURM_JOB_ID}", "/run/x-${SLURM_JOB_ID}:/run/x-${SLURM_JOB_ID}"),
    ],
)
def test_a_mount(text: str, settled: str) -> None:
    assert mount(text) == settled


def test_a_folder_is_not_below_one_whose_name_it_begins_with() -> None:
    assert uncovered(["/data2"], ["/data:/data"]) == ["/data2"]


# --- words of the runtimes --------------------------------------------------------------------


def block(made: LaunchPlan) -> str:
    text = render(made)["script.sbatch"]
    return text[text.index("within=(") : text.index("# --- 3. ")]


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_apptainer_and_its_older_name(runtime: str) -> None:
    words = block(boxed(runtime, at={"options": ["--cleanenv"]}))
    assert f"{runtime} exec --nv" in words
    assert words.index("--cleanenv") < words.index('"$image"')


def test_options_are_words_that_nothing_expands() -> None:
    words = block(boxed("apptainer", container={"image": IMAGE, "options": ["--x=$(id) y"]}))
    assert "'--x=$(id) y'" in words


def test_shifter_asks_sbatch_for_image_and_modules() -> None:
    made = boxed("shifter", at={"options": ["--module=gpu", "--env=A=1", "--module=nccl"]})
    assert dict(made.directives)["image"] == IMAGE
    assert dict(made.directives)["module"] == "gpu,nccl"
    assert "--env=A=1" in block(made)
    assert "--module" not in block(made)


def test_podman_gets_a_signal_that_conmon_survives() -> None:
    made = boxed("podman-hpc", notice={"lead_s": 30})
    assert made.notice_signal == "USR1"
    assert dict(made.directives)["signal"] == "USR1@30"
    assert boxed("podman-hpc", notice={"signal": "USR1"}).notice_signal == "USR1"
    assert "conmon" in complaint("podman-hpc", notice={"signal": "USR2"})
    assert boxed("pyxis").notice_signal == "USR2"


@pytest.mark.parametrize(
    ("image", "key"),
    [
        ("pytorch", "base_environment"),
        ("/x/my.toml", "base_environment"),
        ("/x/my.sqsh", "image"),
        ("nvcr.io#nvidia/pytorch:24.05", "image"),
    ],
)
def test_an_edf_or_an_image(image: str, key: str) -> None:
    assert f"printf '{key}=" in render(boxed("edf", container=image))["script.sbatch"]


def test_options_of_an_edf() -> None:
    made = boxed("edf", at={"options": ["--mpi=pmi2", "com.hooks.x.enabled=true"]})
    assert made.container is not None
    assert made.container.annotations == (("com.hooks.x.enabled", "true"),)
    assert "--mpi=pmi2" in block(made)
    for word in ("x", "a b=1", 'a="'):
        assert "container.options" in complaint("edf", container={"image": "a", "options": [word]})


def test_no_other_scheduler_command_is_needed_inside() -> None:
    node = render(boxed())["node.sh"]
    for word in ("scontrol", "squeue", "srun", "sbatch"):
        assert word not in node
