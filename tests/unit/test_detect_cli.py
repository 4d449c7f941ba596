"""`fsdpq sites detect` and `fsdpq init`, with small programs in the place of Slurm's."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import questions
from orchestrator.detect import probing
from orchestrator.profile import load_profile
from orchestrator.spec.job import load_job

from .recorded_slurm import REPOSITORY, SITE, Fake, fsdpq, own

pytestmark = pytest.mark.processes

# --- fsdpq sites detect -----------------------------------------------------------------------


def test_it_writes_a_profile_of_ones_own(slurm: Fake) -> None:
    done = fsdpq("sites", "detect")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-2:] == [
        f"wrote {own() / 'fsdpq.yaml'}",
        "next: fsdpq init --site fsdpq",
    ]
    assert "spot*" in done.stdout
    assert "requeue, 10 s after its notice" in done.stdout
    assert "left out: partition closed" in done.stderr
    assert load_profile("fsdpq", base=Path(), own=own()).default_partition == "spot"


def test_a_file_is_not_written_over(slurm: Fake) -> None:
    fsdpq("sites", "detect", "-o", "x.yaml")
    before = Path("x.yaml").read_text()
    done = fsdpq("sites", "detect", "-o", "x.yaml", "--node")
    assert (done.exit_code, Path("x.yaml").read_text()) == (1, before)
    assert "x.yaml: is there already" in done.stderr
    assert fsdpq("sites", "detect", "-o", "x.yaml", "--force").exit_code == 0


def test_json_and_standard_output(slurm: Fake) -> None:
    done = json.loads(fsdpq("sites", "detect", "--json", "-o", "-").stdout)
    assert done["path"] is None
    assert done["left_out"] == ["partition closed: it is for the groups root"]
    assert done["profile"]["partitions"]["spotcancel"]["preempt"] == "cancel"
    text = fsdpq("sites", "detect", "-o", "-").stdout
    Path("y.yaml").write_text(text)
    assert load_profile("y.yaml", base=Path()).name == "fsdpq"
    assert not own().exists()
    named = json.loads(fsdpq("sites", "detect", "--json", "--name", "mine").stdout)
    assert named["path"] == str(own() / "mine.yaml")


def test_a_file_that_cannot_be_written_is_one_message(slurm: Fake, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = fsdpq("sites", "detect", "-o", str(tmp_path / "file" / "x.yaml"))
    assert done.exit_code == 1
    assert "x.yaml: cannot be written: " in done.stderr
    assert "name a file in a folder of yours" in done.stderr


@pytest.mark.parametrize("name", ["../x", "/x", ".x", "", "-x", "a b", "a;b"])
def test_names_that_lead_elsewhere(slurm: Fake, name: str) -> None:
    done = fsdpq("sites", "detect", f"--name={name}")
    assert (done.exit_code, own().exists()) == (1, False)
    assert "--name" in done.stderr


@pytest.mark.parametrize(
    ("program", "body", "words"),
    [
        ("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("scontrol", "exit 0", "show partition exited with 0: it printed nothing"),
        (
            "scontrol",
            r"printf '\xff\xfe\x00PartitionName='; exit 0",
            "show partition exited with 0: nothing in its answer can be used; it begins with",
        ),
    ],
)
def test_a_slurm_that_shows_nothing(slurm: Fake, program: str, body: str, words: str) -> None:
    slurm(program, body)
    done = fsdpq("sites", "detect")
    assert (done.exit_code, done.stdout) == (1, "")
    assert words in done.stderr
    assert not own().exists()


def test_all_but_the_partitions_may_be_refused(slurm: Fake) -> None:
    slurm("scontrol", f'case "$*" in *partition*) cat {SITE}/partition.txt ;; *) exit 1 ;; esac')
    slurm("sacctmgr", "echo 'Connection refused' >&2; exit 1")
    slurm("sinfo", f"cat {SITE}/sinfo.txt")
    slurm("srun", "exit 127")
    found = json.loads(fsdpq("sites", "detect", "--json").stdout)
    assert set(found["profile"]["partitions"]) == {
        "spot", "spotcancel", "nograce", "prod", "a100", "mixed", "wall",
    }  # fmt: skip
    said = " ".join(found["left_out"])
    for command in ("scontrol show config", "scontrol show node", "sacctmgr show", "srun"):
        assert command in said
    assert "Connection refused" in said


def test_variables_of_a_job_change_nothing(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm("sinfo", "exit 1")
    slurm("srun", 'env | grep -E "^(SLURM_JOB_ID|SINFO_FORMAT)=" && exit 1; exit 0')
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SINFO_FORMAT", "%i")
    assert not any("srun" in s for s in json.loads(
        fsdpq("sites", "detect", "--json").stdout)["left_out"])  # fmt: skip


# --- --node -----------------------------------------------------------------------------------

PROBED = """[ "$1" = --help ] && exit 0
echo "$*" | head -1 >srun.args
echo '0: @@ host'; echo '0: n1'; echo '0: @@ ports'
echo '0: mlx5_0|1|4: ACTIVE|5: LinkUp|200 Gb/sec (4X HDR)|InfiniBand'"""


def test_a_node_is_looked_at(slurm: Fake) -> None:
    slurm("srun", PROBED)
    done = fsdpq("sites", "detect", "--node", "--account", "research")
    assert done.exit_code == 0, done.output
    fabric = load_profile("fsdpq", base=Path(), own=own()).fabric
    assert (fabric.kind, fabric.rate, fabric.hcas_per_node) == ("infiniband", "HDR200", 1)
    args = Path("srun.args").read_text()
    for option in ("--nodes=1", "--partition=spot", "--account=research", "--gpus-per-node=2"):
        assert option in args


def test_a_probe_that_is_refused_leaves_the_rest(slurm: Fake) -> None:
    slurm("srun", '[ "$1" = --help ] && exit 0; echo "srun: error: Invalid account" >&2; exit 1')
    done = fsdpq("sites", "detect", "--node")
    assert done.exit_code == 0, done.output
    assert "left out: --node: " in done.stderr
    assert "Invalid account" in done.stderr
    assert "@@ host" not in done.stderr
    assert (own() / "fsdpq.yaml").is_file()


def test_a_place_that_cannot_be_written_is_told_before_the_job(slurm: Fake) -> None:
    slurm("srun", PROBED)
    Path("file").touch()
    done = fsdpq("sites", "detect", "--node", "-o", "file/x.yaml")
    assert done.exit_code == 1
    assert "file/x.yaml: cannot be written: " in done.stderr
    assert not Path("srun.args").exists()


def test_a_profile_that_is_there_is_told_before_the_job(slurm: Fake) -> None:
    """Its name is the cluster's, and known only then."""
    fsdpq("sites", "detect")
    slurm("srun", PROBED)
    done = fsdpq("sites", "detect", "--node")
    assert done.exit_code == 1
    assert "fsdpq.yaml: is there already" in done.stderr
    assert not Path("srun.args").exists()


def test_it_says_what_its_job_waits_for(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_TELL_FIRST_S", 0.0)
    slurm("srun", f"{PROBED.replace('exit 0', 'exit 0; until [ -e told ]; do sleep 0.05; done')}")
    slurm("squeue", "touch told; echo 'PENDING Resources'")
    done = fsdpq("sites", "detect", "--node")
    assert done.exit_code == 0, done.output
    assert "s: its job is PENDING (Resources); Ctrl-C cancels it" in done.stderr


def test_a_full_standard_output_is_named(slurm: Fake) -> None:
    argv = [sys.executable, "-m", "orchestrator", "sites", "detect", "-o", "-"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            argv,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
    assert done.returncode == 1
    assert "cannot write: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


# --- fsdpq init -------------------------------------------------------------------------------


def test_nothing_is_asked_with_yes(slurm: Fake) -> None:
    done = fsdpq("init", "--yes")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "next: fsdpq submit job.yaml"
    job = load_job(Path("job.yaml"))
    assert (job.name, job.site, job.nodes, job.account) == ("first-run", "fsdpq", 2, "research")
    assert job.train is not None
    rendered = fsdpq("render", "job.yaml")
    assert rendered.exit_code == 0, rendered.output
    assert "#SBATCH --nodes=2" in rendered.stdout
    assert "#SBATCH --account=research" in rendered.stdout


def test_three_questions_at_most(slurm: Fake) -> None:
    Path("my train.py").touch()
    done = fsdpq("init", input="my train.py\n3\nvision\n")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("]: ") == 3
    job = load_job(Path("job.yaml"))
    assert (job.script, job.nodes, job.account) == (
        str(Path("my train.py").absolute()),
        3,
        "vision",
    )


def test_every_question_has_an_option(slurm: Fake) -> None:
    Path("train.py").touch()
    options = ["--script", "train.py", "--nodes", "1", "--account", "vision", "--name", "x"]
    done = fsdpq("init", "sub", *options, "--partition", "spotcancel")
    assert (done.exit_code, "]: " in done.output) == (0, False), done.output
    job = load_job(Path("sub/job.yaml"))
    assert (job.name, job.partition, job.nodes) == ("x", "spotcancel", 1)
    assert job.script == str(Path("train.py").absolute())


def test_only_accounts_that_the_partition_takes(slurm: Fake) -> None:
    """`mixed` is for research alone, which is the default one: there is nothing to name."""
    done = fsdpq("init", "--partition", "mixed", "--script", "own", "--nodes", "2")
    assert done.exit_code == 0, done.output
    assert load_job(Path("job.yaml")).account is None


@pytest.mark.parametrize(
    ("args", "input", "words"),
    [
        (["--nodes", "9"], None, "--nodes: 9 are more than fsdpq gives a job (4)"),
        (["--script", "nope.py"], None, "there is no file"),
        (["--script", "own"], "many\n", "'many' is no number of nodes"),
        (["--script", "own"], "5\n", "up to 4"),
        (["--script", "own", "--nodes", "2"], "physics\n", "none of yours"),
        (["--site", "nowhere"], None, "there is no profile 'nowhere'"),
        (["--yes", "--name", "a/b"], None, "name"),
    ],
)
def test_mistakes(slurm: Fake, args: list[str], input: str | None, words: str) -> None:
    done = fsdpq("init", *args, input=input)
    assert (done.exit_code, Path("job.yaml").exists()) == (1, False)
    assert words in done.stderr


def test_a_wrong_answer_on_a_terminal_is_asked_for_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["many", "9", "3"])
    monkeypatch.setattr("click.prompt", lambda *_, **__: next(answers))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert questions.nodes(questions.Asker(yes=False), None, 4) == 3
    said = capsys.readouterr().err
    assert "--nodes: 'many' is no number of nodes, up to 4" in said
    assert "--nodes: '9' is no number" in said


def test_nobody_to_answer(slurm: Fake) -> None:
    done = fsdpq("init", input="")
    assert done.exit_code == 2
    assert "--yes takes the defaults" in done.stderr


def test_what_is_there_stays(slurm: Fake) -> None:
    fsdpq("init", "--yes")
    profile = own() / "fsdpq.yaml"
    profile.write_text(profile.read_text().replace("spot", "prod"))
    before = (Path("job.yaml").read_text(), profile.read_text())
    done = fsdpq("init", "--yes")
    assert done.exit_code == 1
    assert "job.yaml: is there already" in done.stderr
    again = fsdpq("init", "other", "--yes")
    assert "is there already, and is used" in again.stderr
    assert (Path("job.yaml").read_text(), profile.read_text()) == before


def test_without_slurm_it_is_for_this_machine(
    slurm: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    done = json.loads(fsdpq("init", "--yes", "--json").stdout)
    assert done == {"job": "job.yaml", "site": "local", "nodes": 1, "account": None}
    job = load_job(Path("job.yaml"))
    assert (job.site, job.gpus_per_node, job.time_limit) == ("local", 2, None)
    assert fsdpq("render", "job.yaml").exit_code == 0


def test_the_next_command_is_quoted(slurm: Fake) -> None:
    last = fsdpq("init", "a b", "--yes").stdout.splitlines()[-1]
    assert shlex.split(last)[-1] == "a b/job.yaml"
