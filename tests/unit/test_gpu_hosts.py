"""Hosts with real GPUs, as far as no GPU and no Slurm is needed for it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.rundir.layout import AttemptLayout
from tests.gpu import packages
from tests.gpu.hosts import Machine, bus_ids, noticed_at
from tests.slurm.cluster.config import gres_conf, slurm_conf

WORK = Path("/work")
MACHINE = Machine(
    hosts=2,
    gpus_per_host=2,
    devices=(("/dev/nvidia0", "/dev/nvidia1"), ("/dev/nvidia2", "/dev/nvidia3")),
    gpu="NVIDIA H200",
    cpus=16,
)


def test_each_host_has_the_devices_of_its_own() -> None:
    assert gres_conf(MACHINE.config, WORK).splitlines() == [
        "NodeName=gpu1 Name=gpu Type=h200 File=/dev/nvidia0,/dev/nvidia1",
        "NodeName=gpu2 Name=gpu Type=h200 File=/dev/nvidia2,/dev/nvidia3",
    ]


def test_without_accounting_nothing_is_asked_of_it() -> None:
    assert "Accounting" not in slurm_conf(MACHINE.config, WORK)
    assert "PartitionName=prod PriorityTier=100" in slurm_conf(MACHINE.config, WORK)


def test_what_slurm_calls_the_gpus() -> None:
    names = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA GH200 480GB": "gh200", "Tesla": "gpu"}
    for name, kind in names.items():
        made = Machine(hosts=1, gpus_per_host=1, devices=((),), gpu=name, cpus=2)
        assert (made.kind, made.real) == (kind, False)


def test_what_is_there_stays_and_links_are_followed(tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    (source / "lib/deep").mkdir(parents=True)
    (source / "lib/new").write_text("new")
    (source / "lib/old").write_text("new")
    (source / "lib/deep/link").symlink_to("nowhere")
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/old").write_text("old")
    (root / "lib").symlink_to("usr/lib")
    packages.add(source, root)
    assert (root / "lib").is_symlink()
    assert (root / "usr/lib/new").read_text() == "new"
    assert (root / "usr/lib/old").read_text() == "old"
    assert (root / "usr/lib/deep/link").is_symlink()


def test_links_of_the_alternatives(tmp_path: Path) -> None:
    (tmp_path / "slurmd-wlm").touch()
    (tmp_path / "slurmd").symlink_to("gone")
    packages.link(tmp_path / "slurmd", "slurmd-wlm")
    assert (tmp_path / "slurmd").resolve() == tmp_path / "slurmd-wlm"


def test_the_first_notice_and_the_gpus_of_an_attempt(tmp_path: Path) -> None:
    attempt = AttemptLayout(tmp_path)
    (tmp_path / "notice.0").write_text("USR2 1796032477\nTERM 1796032490\n")
    (tmp_path / "notice.batch").write_text("USR2 1796032476\n")
    attempt.nccl.mkdir()
    for host, bus in (("gpu1", "5000"), ("gpu2", "e4000")):
        line = f"{host}:7:8 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId {bus} - Init\n"
        (attempt.nccl / f"{host}.7.log").write_text(line * 2)
    assert noticed_at(attempt) == 1796032476
    assert bus_ids(attempt) == {("gpu1", "5000"), ("gpu2", "e4000")}
