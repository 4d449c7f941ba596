"""The seam to submitit, with small programs in the place of sbatch and srun."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import SubmitError, SubmitUnknownError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.submitting import submission

from .builders import DATA, make_run

pytestmark = pytest.mark.processes
Sbatch = Callable[[str], None]
TEXT = "#!/bin/bash\n#SBATCH --comment='\u00e9 %j $x'\necho hello\n"


@pytest.fixture
def run(weird_path: Path) -> RunLayout:
    layout = make_run(weird_path / "llama")
    layout.script.write_text(TEXT, encoding="utf-8")
    return layout


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sbatch:
    """Put a sbatch of a few lines of bash on PATH; it keeps its arguments and its environment."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path))
    for name in ("srun", "sbatch"):
        (bin_ / name).write_text("#!/bin/bash\nexit 99\n")
        (bin_ / name).chmod(0o755)

    def write(body: str) -> None:
        keep = 'printf "%s\\n" "$@" >"$SEEN/args"; env >"$SEEN/env"; cat "${!#}" >"$SEEN/script"'
        (bin_ / "sbatch").write_text(f"#!/bin/bash\n{keep}\n{body}\n")

    return write


def test_sbatch_gets_the_runs_own_script(sbatch: Sbatch, run: RunLayout, tmp_path: Path) -> None:
    sbatch("echo 777")
    assert submission.submit_slurm(run) == "777"
    assert (tmp_path / "script").read_text(encoding="utf-8") == TEXT
    option, path = (tmp_path / "args").read_text().splitlines()
    assert option == "--parsable"
    assert Path(path).is_relative_to(run.submitit)


@pytest.mark.parametrize(
    ("answer", "job_id"),
    [("777;nautilus", "777"), ("your job has 4 hours left\n777", "777"), ("caf\u00e9\n8", "8")],
)
def test_banners_and_clusters(sbatch: Sbatch, tmp_path: Path, answer: str, job_id: str) -> None:
    layout = make_run(tmp_path / "llama")
    layout.script.write_text(TEXT)
    sbatch(f"printf '%s\\n' '{answer}'")
    assert submission.submit_slurm(layout) == job_id


def test_the_environment_is_clean_and_comes_back(
    sbatch: Sbatch, run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SBATCH_PARTITION", "SLURM_NTASKS", "SLURM_CONF", "HF_TOKEN"):
        monkeypatch.setenv(name, "x")
    before = dict(os.environ)
    sbatch("echo 777")
    submission.submit_slurm(run)
    assert dict(os.environ) == before
    seen = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert {"SLURM_CONF", "HF_TOKEN"} <= seen
    assert not {"SBATCH_PARTITION", "SLURM_NTASKS"} & seen


def refused(run: RunLayout) -> SubmitError:
    with pytest.raises(SubmitError) as caught:
        submission.submit_slurm(run)
    return caught.value


def unknown(run: RunLayout) -> SubmitUnknownError:
    with pytest.raises(SubmitUnknownError) as caught:
        submission.submit_slurm(run)
    return caught.value


@pytest.mark.parametrize(
    "stderr",
    [
        (DATA / "sbatch-bad.stderr").read_text(),
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller",
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates QOS policy",
    ],
)
def test_a_refusal_is_told_in_slurms_words(
    sbatch: Sbatch, run: RunLayout, stderr: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch(f"cat >&2 <<'EOF'\n{stderr}\nEOF\nexit 1")
    error = refused(run)
    assert error.returncode == 1
    assert stderr.strip().splitlines()[-1] in error.stderr
    assert "Traceback" not in str(error)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize(
    "body",
    [
        "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1",
        "echo 'sbatch: error: Zero Bytes were transmitted or received' >&2; exit 1",
        "exit 124",  # our own time-out
        "exit 137",
        "kill -KILL $$",
        "true",  # accepted, and no id
        "echo Submitted batch job 5",
    ],
)
def test_the_job_may_exist_although_there_is_no_answer(
    sbatch: Sbatch, run: RunLayout, body: str
) -> None:
    sbatch(body)
    unknown(run)


def test_a_machine_without_slurm(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    error = refused(run)
    assert error.returncode == 127
    assert "srun" in error.stderr


def test_sbatch_has_limited_time(run: RunLayout) -> None:
    bare_executor = submission.ScriptExecutor.__new__(submission.ScriptExecutor)
    bare_executor._options = ["--nodes=3"]
    argv = submission.ScriptExecutor._make_submission_command(bare_executor, Path("/x y"))
    assert argv == [
        "timeout",
        str(submission.SUBMIT_TIMEOUT_S),
        "sbatch",
        "--parsable",
        "--nodes=3",
        "/x y",
    ]


# --- on this machine --------------------------------------------------------------------------


def test_a_local_run_leaves_its_id_and_outlives_its_starter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    layout = make_run(tmp_path / "it's $a; b" / "llama", scheduler="local")
    done = tmp_path / "done"
    session = "read -r -a fields </proc/$$/stat\necho ${fields[5]}"
    layout.script.write_text(f"#!/bin/bash\n{session} >{shlex.quote(str(done))}\n")
    job_id = submission.submit_local(layout)
    assert job_id.isdigit()
    for _ in range(600):
        if done.exists() and done.read_text():
            break
        time.sleep(0.1)
    assert int(done.read_text()) != os.getsid(0)


def test_a_local_run_that_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = make_run(tmp_path / "llama", scheduler="local")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SubmitError, match=r"local\.start .* exited with 1"):
        submission.submit_local(layout)
    assert store.read_json(layout.plan) is not None
