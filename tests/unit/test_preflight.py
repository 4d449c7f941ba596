"""What makes a node unfit, and what does not: texts of nvidia-smi, of the kernel, of the ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.keys.fields import validate
from orchestrator.launchplan import fitness
from orchestrator.preflight import gpus, hcas, reports, storage, writing
from orchestrator.preflight.children import Output
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Findings, one_line
from orchestrator.preflight.reports import Report
from orchestrator.preflight.smi import (
    HEALTH,
    IDENTITY,
    OLDER,
    ROWS,
    Row,
    query,
    read_links,
    read_rows,
    unknown_field,
    without,
)
from orchestrator.preflight.storage import Room
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import JobSpec
from orchestrator.spec.preflight import CERTAIN, CHECKS

from .builders import plan, site, spec

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"
# An idle H100 that is well.
WELL = {
    "uuid": "GPU-{}",
    "name": "NVIDIA H100 80GB HBM3",
    "memory.used": "4",
    "temperature.gpu": "31",
    "pstate": "P0",
    "mig.mode.current": "Disabled",
    "clocks.sm": "345",
    "clocks.max.sm": "1980",
    "clocks_event_reasons.active": "0x0000000000000001",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "retired_pages.pending": "[N/A]",
    "gpu_recovery_action": "None",
    "reset_status.reset_required": "[N/A]",
}


def said(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def expected(**changes: Any) -> Expected:
    """Everything on, for two H100."""
    usual: dict[str, Any] = {"checks": CHECKS, "gpus": 2, "gpu_model": "H100-80GB-SXM"}
    return Expected(**{**usual, **changes})


def gpu(index: int = 0, **changes: str) -> Row:
    """A GPU as nvidia-smi shows it; dots in names of fields are written as two underscores."""
    values = {"index": str(index), **WELL, "uuid": f"GPU-{index}"}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    fields = (*IDENTITY, *HEALTH, OLDER["gpu_recovery_action"])
    [row] = read_rows(", ".join(values[field] for field in fields), fields)
    return row


def whats(found: Findings) -> list[str]:
    return [problem.what for problem in found.problems]


# --- the words of nvidia-smi ------------------------------------------------------------------


def test_values_that_stand_for_nothing_are_none() -> None:
    fields = ["a", "b", "c", "d", "e", "f", "g"]
    [row] = read_rows(said("old-values"), fields)
    assert row.number("a") == 2004
    assert (row.number("e"), row.text("e")) == (None, "")
    assert row.number("nothing") is None


@pytest.mark.parametrize(
    "name", ["lost", "handle", "mismatch", "no-driver", "unknown-field", "unknown-field-h200"]
)
def test_messages_are_no_rows(name: str) -> None:
    assert read_rows(said(name), ["index", "uuid"]) == []


def test_a_field_that_the_driver_does_not_know_is_left_out_or_called_as_before() -> None:
    assert unknown_field(said("unknown-field")) == "device_minor"
    assert unknown_field(said("lost")) == ""
    assert without(["index", "device_minor"], "device_minor") == ("index",)
    older = without(HEALTH, "clocks_event_reasons.active")
    assert "clocks_throttle_reasons.active" in older
    assert len(without(older, "clocks_throttle_reasons.active")) == len(HEALTH) - 1


def test_a_driver_that_knows_neither_word_for_a_reset_is_asked_for_all_the_rest() -> None:
    older = without(HEALTH, "gpu_recovery_action")
    assert unknown_field(said("unknown-field-h200")) == "reset_status.reset_required"
    rest = without(older, unknown_field(said("unknown-field-h200")))
    assert set(rest) == set(HEALTH) - {"gpu_recovery_action"}


def test_the_question_is_one_argument() -> None:
    assert query("gpu", ["a", "b"])[1:] == ["--query-gpu=a,b", "--format=csv,noheader,nounits"]


def test_links() -> None:
    h100 = read_links(said("nvlink-h100"))
    assert [(gpu.index, gpu.active, gpu.inactive) for gpu in h100] == [("0", 18, ()), ("1", 18, ())]
    assert h100[1].uuid == "GPU-dd3b269a-8f3a-d2d5-1518-2713ba03fcf7"
    v100 = read_links(said("nvlink-v100-inactive"))
    assert [(gpu.active, gpu.inactive) for gpu in v100] == [(6, ()), (4, (3, 5))]


def test_what_two_h200_say_that_are_well() -> None:
    rows, links = read_rows(said("rows-h200"), ROWS), read_links(said("nvlink-h200"))
    assert [row.text("remapped_rows.failure") for row in rows] == ["No", "No"]
    assert [(gpu.index, gpu.active, gpu.inactive) for gpu in links] == [
        ("0", 18, ()),
        ("1", 18, ()),
    ]
    uuids = [gpu.uuid for gpu in links]
    assert uuids == [row.text("gpu_uuid") for row in rows]
    assert gpus.judge_rows(rows) == Findings()
    assert (
        gpus.judge_links(links, [gpu(i, uuid=uuid) for i, uuid in enumerate(uuids)]) == Findings()
    )


@pytest.mark.parametrize(
    ("moment", "clocks", "mask"),
    [("idle", [345, 345], 0x1), ("training", [1440, 1440], 0x4), ("waiting", [1980, 1980], 0x0)],
)
def test_the_clocks_of_an_h200_are_no_fault(moment: str, clocks: list[int], mask: int) -> None:
    fields = ("index", "clocks.sm", "temperature.gpu", "clocks_event_reasons.active")
    rows = read_rows(said(f"clocks-h200-{moment}"), fields)
    assert [row.number("clocks.sm") for row in rows] == clocks
    assert [row.bits("clocks_event_reasons.active") for row in rows] == [mask, mask]
    most = [Row({**row.fields, "clocks.max.sm": "1980"}) for row in rows]
    assert gpus.judge_clocks(most, expected()) == Findings()


# --- GPUs -------------------------------------------------------------------------------------


def test_gpus_that_are_well() -> None:
    rows = [gpu(0), gpu(1)]
    assert gpus.judge_count(rows, expected(), None) == Findings()
    assert gpus.judge_state(rows, expected()) == Findings()
    assert gpus.judge_ecc(rows, expected()) == Findings()
    assert gpus.judge_memory(rows, expected(), {}) == Findings()
    assert gpus.judge_clocks(rows, expected()) == Findings()


@pytest.mark.parametrize("name", ["lost", "handle", "mismatch", "no-driver"])
def test_no_table_at_all_is_the_nodes_fault_where_gpus_are_needed(name: str) -> None:
    [problem] = gpus.judge_failure(said(name), expected()).problems
    assert (problem.check, problem.kind) == ("gpus", "node")
    assert " ".join(said(name).split())[:60] in problem.what
    without_gpus = gpus.judge_failure(said(name), expected(gpus=None))
    assert without_gpus.problems == ()
    assert without_gpus.notes


@pytest.mark.parametrize(
    ("count", "visible", "kind", "word"),
    [
        (1, None, "node", "1 GPUs, and 2 are needed"),
        (0, None, "node", "0 GPUs"),
        (8, "0", "job", "shows 1 GPUs to 2 workers"),
        (8, "", "job", "shows 0 GPUs"),
        (8, "NoDevFiles", "job", "shows 0 GPUs"),
        (1, "0,1", "node", "shows no GPU 1"),
        (2, "GPU-0,GPU-7", "node", "shows no GPU GPU-7"),
    ],
)
def test_too_few_gpus(count: int, visible: str | None, kind: str, word: str) -> None:
    [problem] = gpus.judge_count([gpu(i) for i in range(count)], expected(), visible).problems
    assert (problem.check, problem.kind) == ("gpus", kind)
    assert word in problem.what


@pytest.mark.parametrize(
    ("count", "visible", "needed"),
    [
        (8, None, 2),
        (8, "6,7", 2),
        (2, "GPU-0,GPU-1", 2),
        (1, None, None),
        (0, None, None),
        (1, "MIG-9f3c,MIG-2a11", 2),
    ],
)
def test_enough_gpus(count: int, visible: str | None, needed: int | None) -> None:
    rows = [gpu(i) for i in range(count)]
    assert gpus.judge_count(rows, expected(gpus=needed), visible) == Findings()


def test_slices_are_not_counted() -> None:
    assert gpus.judge_count([gpu(0)], expected(mig=True), None) == Findings()


def test_only_the_jobs_own_gpus_are_judged() -> None:
    rows = [gpu(0, pstate="[GPU requires reset]"), gpu(1), gpu(2)]
    mine, missing = gpus.ours(rows, "1,2")
    assert ([row.text("index") for row in mine], missing) == (["1", "2"], [])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"pstate": "[GPU requires reset]"}, "does not answer: GPU requires reset"),
        ({"temperature__gpu": "ERR!"}, "does not answer: ERR!"),
        ({"memory__used": "[GPU is lost]"}, "GPU is lost"),
        ({"gpu_recovery_action": "Reset"}, "asks for this recovery: Reset"),
        ({"gpu_recovery_action": "Reboot"}, "asks for this recovery: Reboot"),
        ({"reset_status__reset_required": "Yes"}, "asks for a reset"),
        ({"mig__mode__current": "Enabled"}, "MIG mode"),
    ],
)
def test_gpus_that_are_broken_by_their_own_word(changes: dict[str, str], word: str) -> None:
    [problem] = gpus.judge_state([gpu(0), gpu(1, **changes)], expected()).problems
    assert (problem.check, problem.kind) == ("gpus", "node")
    assert "GPU 1 (GPU-1)" in problem.what
    assert word in problem.what


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature__gpu": "[Unknown Error]"},
        {"gpu_recovery_action": "[N/A]"},
        {"reset_status__reset_required": "Requested functionality has been deprecated"},
        {"mig__mode__current": "[N/A]"},
    ],
)
def test_what_a_driver_cannot_say_is_no_fault(changes: dict[str, str]) -> None:
    assert gpus.judge_state([gpu(0, **changes)], expected()) == Findings()


def test_a_gpu_of_reduced_capacity_or_another_model_is_a_note() -> None:
    rows = [gpu(0, gpu_recovery_action="Drain and Reset"), gpu(1, name="NVIDIA A100-SXM4-40GB")]
    found = gpus.judge_state(rows, expected())
    assert found.problems == ()
    assert found.notes[0].startswith("GPU 0 (GPU-0): the driver asks")
    assert "is a NVIDIA A100-SXM4-40GB" in found.notes[1]
    sliced = gpus.judge_state([gpu(0, mig__mode__current="Enabled")], expected(mig=True))
    assert sliced == Findings()


def test_rows_of_memory_that_could_not_be_remapped() -> None:
    fields = ("gpu_uuid", "remapped_rows.pending", "remapped_rows.failure")
    found = gpus.judge_rows(read_rows("GPU-0, No, No\nGPU-1, No, Yes\nGPU-2, Yes, No", fields))
    assert whats(found) == ["GPU-1: a row of its memory could not be remapped"]
    assert len(found.notes) == 1
    assert gpus.judge_rows(read_rows("GPU-0, [N/A], [N/A]", fields)) == Findings()


def test_uncorrected_errors_of_today_count_and_those_of_its_life_do_not() -> None:
    found = gpus.judge_ecc(
        [
            gpu(0, ecc__errors__uncorrected__volatile__total="2"),
            gpu(1, ecc__errors__uncorrected__aggregate__total="7"),
            gpu(2, ecc__errors__uncorrected__volatile__total="[N/A]"),
        ],
        expected(),
    )
    assert whats(found) == ["GPU 0 (GPU-0): 2 uncorrected memory errors"]
    assert "7 uncorrected" in found.notes[0]
    two = [gpu(0, ecc__errors__uncorrected__volatile__total="2")]
    assert gpus.judge_ecc(two, expected(uncorrected_ecc=2)) == Findings()


def test_memory_that_somebody_else_uses_is_named_with_him() -> None:
    fields = ("gpu_uuid", "pid", "used_memory", "process_name")
    [process] = read_rows("GPU-1, 4711, 40000, /usr/bin/python3", fields)
    rows = [gpu(0), gpu(1, memory__used="40960")]
    found = gpus.judge_memory(rows, expected(), {"GPU-1": [process]})
    assert whats(found) == ["GPU 1 (GPU-1): 40.0 GiB in use by /usr/bin/python3 (pid 4711)"]
    assert "unknown processes" in whats(gpus.judge_memory(rows, expected(), {}))[0]
    coherent = gpu(0, memory__used="40960", name="NVIDIA GH200 480GB")
    assert gpus.judge_memory([coherent], expected(), {}) == Findings()


@pytest.mark.parametrize(
    ("field", "mask", "why"),
    [
        ("clocks_event_reasons__active", "0x0000000000000048", "hardware slowdown, thermal"),
        ("clocks_event_reasons__active", "0x0000000000000080", "power brake"),
        ("clocks_event_reasons__active", "0x0000000000000020", "thermal slowdown by the driver"),
    ],
)
def test_clocks_that_are_held_down(field: str, mask: str, why: str) -> None:
    [what] = whats(gpus.judge_clocks([gpu(0), gpu(1, **{field: mask})], expected()))
    assert "GPU 1 (GPU-1): 345 of 1980 MHz" in what
    assert why in what


def test_clocks_that_are_low_for_want_of_work_or_capped_by_power_are_well() -> None:
    capped = gpu(0, clocks_event_reasons__active="0x0000000000000004")
    fast = gpu(1, clocks_event_reasons__active="0x0000000000000008", clocks__sm="1905")
    assert gpus.judge_clocks([capped, fast], expected()) == Findings()
    assert "95 degrees" in whats(gpus.judge_clocks([gpu(0, temperature__gpu="95")], expected()))[0]


def test_the_older_name_of_the_reasons_counts_as_well() -> None:
    fields = ("index", "uuid", "clocks.sm", "clocks.max.sm", "clocks_throttle_reasons.active")
    rows = read_rows("0, GPU-0, 210, 1410, 0x0000000000000008", fields)
    assert "hardware slowdown" in whats(gpus.judge_clocks(rows, expected()))[0]


def test_inactive_links_are_named() -> None:
    v100 = read_links(said("nvlink-v100-inactive"))
    found = gpus.judge_links(v100, [gpu(0), gpu(3)])
    assert whats(found) == ["GPU 3: 4 of 6 NVLink links (inactive: 3, 5)"]
    assert gpus.judge_links(v100, [gpu(0)]) == Findings()
    none = gpus.judge_links(read_links(said("nvlink-none")), [gpu(0), gpu(1)])
    assert whats(none) == ["GPU 0: 0 of 1 NVLink links"]
    assert gpus.judge_links([], [gpu(0)]) == Findings()


# --- HCAs -------------------------------------------------------------------------------------


def port(root: Path, hca: str, **changes: str) -> None:
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        **changes,
    }
    folder = root / hca / "ports" / "1"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


FABRIC: dict[str, Any] = {"fabric": "infiniband", "hcas": 2, "hca_gbps": 400}
DOWN = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X)"}


def judged(root: Path, **changes: Any) -> Findings:
    return hcas.judge(hcas.read_ports(root), expected(**{**FABRIC, **changes}))


def test_a_port_that_is_down_and_not_needed_is_well(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", **DOWN)
    port(tmp_path, "mlx5_2")
    port(tmp_path, "mlx5_bond_0", link_layer="Ethernet", rate="25 Gb/sec (1X EDR)")
    assert judged(tmp_path) == Findings()


def test_too_few_hcas_are_named(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", **DOWN)
    [problem] = judged(tmp_path).problems
    assert (problem.check, problem.kind) == ("hcas", "node")
    assert "1 of 2 HCAs are active at 400 Gbit/s" in problem.what
    assert "mlx5_1 port 1 is down at 10 Gbit/s" in problem.what


def test_a_slow_link_is_named(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", rate="100 Gb/sec (4X EDR)")
    assert "mlx5_1 port 1 is active at 100 Gbit/s" in whats(judged(tmp_path))[0]
    assert judged(tmp_path, hca_gbps=None) == Findings()


def test_where_the_profile_gives_no_number_one_good_port_will_do(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", **DOWN)
    assert "no port of the infiniband network" in whats(judged(tmp_path, hcas=None))[0]
    port(tmp_path, "mlx5_1")
    assert judged(tmp_path, hcas=None) == Findings()


def test_no_adapter_at_all_may_be_a_container(tmp_path: Path) -> None:
    assert judged(tmp_path / "missing", hcas=None).problems == ()
    assert judged(tmp_path / "missing", hcas=None).notes
    assert "0 of 2 HCAs" in whats(judged(tmp_path / "missing"))[0]


def test_a_port_without_a_subnet_manager_is_noted(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", state="2: INIT")
    assert "subnet manager" in judged(tmp_path, hcas=1).notes[0]


@pytest.mark.parametrize("kind", ["ethernet", "slingshot", "none", "omnipath"])
def test_networks_without_hcas_are_not_asked_for(kind: str, tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", **DOWN)
    assert judged(tmp_path, fabric=kind) == Findings()


# --- storage ----------------------------------------------------------------------------------


def wrote(**said: Any) -> Findings:
    return storage.judge(Output(0, f"a warning\n{json.dumps(said)}\n"), path=Path("/c"))


def test_a_write_that_works(tmp_path: Path) -> None:
    found = writing.write_test(tmp_path, node="0")
    assert found["free"] > 0
    assert (found["newest"], abs(found["skew_s"]) < 60) == (None, True)
    assert list(tmp_path.iterdir()) == []
    assert wrote(**found) == Findings()


def test_a_write_that_fails_is_the_storages_fault(tmp_path: Path) -> None:
    found = writing.write_test(tmp_path / "missing", node="0")
    assert found == {"error": "cannot be written: No such file or directory"}
    [problem] = wrote(**found).problems
    assert (problem.check, problem.kind) == ("storage", "storage")
    assert problem.what == "/c: cannot be written: No such file or directory"


def test_a_write_that_hangs() -> None:
    [problem] = storage.judge(Output(None, ""), path=Path("/c")).problems
    assert problem.kind == "storage"
    assert "not written in time" in problem.what


def test_a_write_test_that_breaks_is_a_note() -> None:
    found = storage.judge(Output(1, "Traceback: boom"), path=Path("/c"))
    assert found.problems == ()
    assert "boom" in found.notes[0]


def test_a_checkpoint_must_fit() -> None:
    gib = 1 << 30
    assert "110.0 GiB are free" in whats(wrote(free=110 * gib, newest=100 * gib, skew_s=0.0))[0]
    assert wrote(free=121 * gib, newest=100 * gib, skew_s=0.0) == Findings()


def test_clocks_that_differ_are_noted() -> None:
    found = wrote(free=1, newest=None, skew_s=-90.4)
    assert (found.problems, len(found.notes)) == ((), 1)
    assert "-90 s" in found.notes[0]


def test_rooms() -> None:
    mib = 1 << 20
    found = storage.judge_rooms(Room("/tmp", mib), Room("/dev/shm", 64 * mib), Room("/x", None))
    assert whats(found) == ["/tmp: 1 MiB are free"]
    assert found.problems[0].kind == "node"
    assert found.notes == ("/dev/shm: only 64 MiB are free",)


# --- the small all-reduce ---------------------------------------------------------------------


def ranks(*changes: dict[str, Any]) -> list[Report]:
    usual = {"stage": "done", "sum_ok": True, "work_s": 0.03}
    return [
        Report.from_json(rank, {**usual, "device": f"cuda:{rank}", **change})
        for rank, change in enumerate(changes)
    ]


def reduced(*changes: dict[str, Any]) -> Findings:
    return reports.judge(ranks(*changes), waited_s=120.0)


def test_an_all_reduce_that_works() -> None:
    assert reduced({}, {"work_s": 0.04}, {}) == Findings()


def test_the_rank_that_raised_first_is_named_and_those_that_followed_are_not() -> None:
    found = reduced(
        {"stage": "group", "error": "DistBackendError: connection closed"},
        {"stage": "started", "error": "AcceleratorError: CUDA error: uncorrectable ECC error"},
    )
    assert whats(found) == ["GPU 1 failed: AcceleratorError: CUDA error: uncorrectable ECC error"]


def test_the_rank_that_hangs_is_named() -> None:
    found = reduced({"stage": "device"}, {"stage": "started"}, {"stage": "device"})
    assert whats(found) == ["GPU 1 still waited for its GPU after 120 s"]
    assert "GPU 0, GPU 1" in whats(reduced({"stage": "group"}, {"stage": "group"}))[0]


def test_a_wrong_sum_and_a_slow_gpu_are_named() -> None:
    assert "GPU 1 has a wrong sum" in whats(reduced({}, {"sum_ok": False}))[0]
    assert "GPU 2 took 90 ms" in whats(reduced({}, {}, {"work_s": 0.09}))[0]
    cpu = {"device": "cpu"}
    assert reduced(cpu, cpu, {**cpu, "work_s": 0.09}) == Findings()


def test_a_python_without_torch_is_a_note() -> None:
    lack = {"stage": "", "error": "ModuleNotFoundError: No module named 'torch'"}
    found = reduced(lack, lack)
    assert found.problems == ()
    assert "not run: ModuleNotFoundError" in found.notes[0]


# --- what is asked of a node ------------------------------------------------------------------

H100 = {"model": "H100-80GB-SXM", "per_node": 4}


def asked(job: dict[str, Any], **profile: Any) -> Expected:
    at: SiteProfile = site(**{"gpu": H100, **profile})
    return fitness.expected(spec(**job), at, workers=4)


def test_without_a_word_only_what_is_certain_is_checked() -> None:
    assert asked({}).checks == CERTAIN.checks == ("gpus", "storage")
    assert asked({"preflight": True}).checks == CHECKS[:-2]
    assert asked({"preflight": {"all_reduce": True, "hcas": False}}).checks == (
        *("gpus", "memory", "ecc", "clocks", "nvlink", "storage", "all_reduce"),
    )
    assert asked({"preflight": False}).checks == ()
    assert plan(spec()).preflight
    assert not plan(spec(preflight=False)).preflight


@pytest.mark.parametrize("value", ["yes", 3, {"gpu": True}, {"timeout_s": 0}])
def test_what_is_no_check_is_refused(value: Any) -> None:
    data = {"name": "a", "site": "b", "script": "/c", "preflight": value}
    with pytest.raises(SpecError, match="preflight"):
        validate(JobSpec, data, where=Path("job.yaml"), error=SpecError)


def test_expectations_come_from_job_and_profile() -> None:
    infiniband = {"kind": "infiniband", "rate": "NDR400", "hcas_per_node": 8}
    of_two = asked({"nodes": 2}, fabric=infiniband)
    assert (of_two.gpus, of_two.gpu_model, of_two.workers) == (4, "H100-80GB-SXM", 4)
    assert (of_two.fabric, of_two.hcas, of_two.hca_gbps) == ("infiniband", 8, 400)
    alone = asked({"nodes": 1}, fabric=infiniband)
    assert (alone.fabric, alone.hcas) == ("none", None)
    assert asked({"nodes": 2}, gpu=None).gpus is None
    assert asked({}, gpu={"model": "A100", "per_node": 4, "type": "a100_3g.20gb"}).mig


@pytest.mark.parametrize("rate", ["3200Gb/s", "fast", None])
def test_a_rate_that_may_be_that_of_the_whole_node_is_none(rate: str | None) -> None:
    profile = {"kind": "infiniband", "rate": rate, "hcas_per_node": 8}
    assert asked({"nodes": 2}, fabric=profile).hca_gbps is None


def test_expectations_survive_json_and_other_versions() -> None:
    made = expected(**FABRIC)
    data = json.loads(json.dumps(made.to_json()))
    assert Expected.from_json({**data, "of a later version": 1}) == made
    with pytest.raises(KeyError):
        Expected.from_json({})


def test_what_was_found_is_json() -> None:
    found = reduced({}, {"sum_ok": False})
    assert found.to_json(node="n2", at=5.0) == {
        "node": "n2",
        "ok": False,
        "at": 5.0,
        "problems": [
            {
                "check": "all_reduce",
                "kind": "node",
                "what": "GPU 1 has a wrong sum after the all-reduce",
            }
        ],
        "notes": [],
    }
    assert one_line("a\x1b[31m\n" + "b" * 400)[-4:] == "b..."
