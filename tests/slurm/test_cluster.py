"""The test cluster itself: what other tests rely on, shown with real jobs."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from pathlib import Path

import pytest

from .cluster import Cluster, SlurmVersion
from .cluster.mounts import only_devices

# A step that writes down each signal it gets and goes on.
LISTEN = """
cat > $LOG.sh <<'END'
for name in USR2 TERM; do trap "echo $name >> $LOG" $name; done
echo started >> $LOG
while true; do sleep 0.1; done
END
srun --ntasks=1 --nodes=1 bash $LOG.sh
"""
DAEMONS = {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd"}
START_AND_WAIT = """
import time
from tests.slurm.cluster import Cluster
with Cluster() as cluster:
    job = cluster.popen(["srun", "--nodes=2", "sleep", "1000"])
    print(cluster.work, flush=True)
    time.sleep(1000)
"""


def listening_job(cluster: Cluster, partition: str) -> tuple[int, Path]:
    """A running job on two whole hosts, and the file that its signals appear in."""
    log = cluster.home() / f"signals-{partition}-{time.monotonic_ns()}"
    size = ["--nodes=2", "--exclusive", "--signal=USR2@5", f"--partition={partition}"]
    export = [f"--export=ALL,LOG={log}", "--output=/dev/null"]
    job = cluster.sbatch([*size, *export], LISTEN)
    cluster.wait_for(log.exists, 30, f"the step of job {job} listens")
    return job, log


def signals(log: Path) -> list[str]:
    """The signals that a listening step got so far."""
    return log.read_text().split()[1:]


def wait_for_first_signal(cluster: Cluster, log: Path, name: str) -> None:
    """Return once the first signal that a listening step got is the expected one."""
    cluster.wait_for(lambda: signals(log)[:1] == [name], 30, f"{name} comes first")


def test_hosts_differ_and_know_each_other(cluster: Cluster) -> None:
    script = "hostname; id -un; getent hosts n2; touch /tmp/$(hostname); ls /tmp | grep -c '^n'"
    done = cluster.run(["srun", "--nodes=2", "--label", "sh", "-c", script])
    address = cluster.run(["getent", "hosts", "n2"]).stdout.strip()
    expected = [
        f"{task}: {line}" for task in (0, 1) for line in (f"n{task + 1}", "alice", address, "1")
    ]
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_jobs_reach_the_interpreter_and_the_checkout(cluster: Cluster) -> None:
    code = "import tests.slurm.cluster as package; print(package.__file__)"
    done = cluster.run(["srun", cluster.python, "-c", code], cwd=cluster.repository)
    assert Path(done.stdout.strip()).is_relative_to(cluster.repository)


def test_a_job_gets_the_environment_of_a_login(cluster: Cluster) -> None:
    out = cluster.home() / "environment"
    job = cluster.sbatch(["--export=NONE", f"--output={out}"], "id -un; echo $HOME")
    cluster.wait_for_state(job, "COMPLETED")
    assert out.read_text().split() == ["alice", str(cluster.home())]


def test_srun_hands_the_environment_on_unless_a_variable_says_otherwise(cluster: Cluster) -> None:
    """So the launch takes that variable away; some sites do not want --export to be used."""
    out = cluster.home() / "exported"
    show = "srun /bin/bash -c 'echo got-$WORD'"
    script = f"export WORD=it\n{show}\nunset SLURM_EXPORT_ENV SRUN_EXPORT_ENV\n{show}"
    job = cluster.sbatch(["--export=NONE", f"--output={out}"], script)
    cluster.wait_for_state(job, "COMPLETED")
    assert out.read_text().split() == ["got-", "got-it"]


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        (["--gres=gpu:h100:1"], "0"),
        (["--partition=nograce", "--gres=gpu:2"], "0,1"),
        (["--partition=a100", "--gres=gpu:a100:2"], "0,1"),
    ],
)
def test_typed_gpus(cluster: Cluster, options: list[str], devices: str) -> None:
    done = cluster.run(["srun", *options, "printenv", "CUDA_VISIBLE_DEVICES"])
    assert done.stdout.strip() == devices


def test_a_host_sees_no_gpus_but_its_own(real_slurm: SlurmVersion) -> None:
    """On a made-up /dev. CUDA would number all GPUs of the machine, and Slurm those of a host."""
    made = [
        "mount -t tmpfs tmpfs /run",
        "mkdir /run/made",
        "cp -ax /dev/. /run/made",
        "for i in 0 1 10 11 ctl; do mknod -m 666 /run/made/nvidia$i c 1 3; done",
        "mount --bind /run/made /dev",
    ]
    look = ["ls /dev/nvidia*", "echo word >/dev/nvidia1", "! touch /dev/nvidia0 2>/dev/null"]
    lines = ["set -e", *made, *only_devices(["/dev/nvidia1", "/dev/nvidia10"]), *look]
    argv = ["unshare", "--mount", "bash", "-c", "\n".join(lines)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["/dev/nvidia1", "/dev/nvidia10", "/dev/nvidiactl"]


def test_a_gpu_type_that_a_partition_lacks_is_refused(cluster: Cluster) -> None:
    argv = ["srun", "--partition=spot", "--gres=gpu:a100:1", "true"]
    assert "not available" in cluster.run(argv, check=False).stderr


def test_preemption_with_a_user_signal(cluster: Cluster) -> None:
    requeued, requeued_log = listening_job(cluster, "spot")
    cancelled, cancelled_log = listening_job(cluster, "spotcancel")
    cluster.submit_prod(nodes=4)
    wait_for_first_signal(cluster, requeued_log, "USR2")
    wait_for_first_signal(cluster, cancelled_log, "USR2")
    # The end of the grace time is looked at every 30 s only.
    cluster.wait_for_state(requeued, "PENDING", timeout=60)
    cluster.wait_for_state(cancelled, "PREEMPTED", timeout=60)
    job = cluster.job(requeued)
    assert (job["Restarts"], job["Reason"]) == ("1", "BeginTime")
    assert cluster.run(["squeue", "--noheader", "--format=%A"]).stdout.count(str(cancelled)) == 0


def test_preemption_with_sigterm_only(cluster: Cluster) -> None:
    cluster.reconfigure(user_signal=False)
    _, log = listening_job(cluster, "spot")
    cluster.submit_prod(nodes=4)
    wait_for_first_signal(cluster, log, "TERM")
    assert "USR2" not in signals(log)


def test_reconfigure_changes_the_scheduler(cluster: Cluster) -> None:
    show = ["scontrol", "show", "config"]
    assert "sched_interval=2,bf_interval=2" in cluster.run(show).stdout
    cluster.reconfigure(default_scheduler=True)
    assert "sched_interval" not in cluster.run(show).stdout


def test_power_off_requeues(cluster: Cluster) -> None:
    cluster.apply(dataclasses.replace(cluster.config, slurmd_timeout_s=5))
    job = cluster.sbatch(["--nodes=2", "--requeue"], "srun sleep 1000")
    cluster.wait_for_state(job, "RUNNING")
    cluster.power_off("n1")
    cluster.wait_for(lambda: cluster.job(job)["Restarts"] == "1", 60, "the job is requeued")
    assert cluster.node_states()["n1"] == "down*"
    cluster.boot("n1")


def test_a_killed_host_still_has_a_kernel(cluster: Cluster) -> None:
    process = cluster.popen(["sleep", "1000"], host="n2")
    cluster.kill_host("n2")
    process.communicate(timeout=60)
    assert cluster.run(["hostname"], host="n2").stdout == "n2\n"


def test_accounting_knows_the_user(cluster: Cluster) -> None:
    job = cluster.sbatch(["--output=/dev/null"], "exit 3", user="bob")
    sacct = ["sacct", "-nPX", f"--jobs={job}", "--format=User,Account,State,ExitCode"]
    expected = "bob|vision|FAILED|3:0"
    cluster.wait_for(
        lambda: cluster.run(sacct, user="bob").stdout.strip() == expected, 20, expected
    )


def test_reset_mends_everything(cluster: Cluster) -> None:
    stray = cluster.popen(["sleep", "1000"])
    cluster.sbatch([], "sleep 1000")
    cluster.power_off("n1")
    cluster.kill_host("n2")
    cluster.cut_cable("n3")
    cluster.stop_accounting()
    cluster.stop_controller()
    cluster.reset()
    assert set(cluster.node_states().values()) == {"idle"}
    assert cluster.run(["squeue", "--noheader"]).stdout == ""
    stray.communicate(timeout=10)
