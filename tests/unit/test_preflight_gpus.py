"""Which GPUs make a node unfit: too few, broken, in use, slow, or with links that are down."""

from __future__ import annotations

import pytest

from orchestrator.preflight import gpus
from orchestrator.preflight.findings import Findings
from orchestrator.preflight.smi import read_links, read_rows

from .gpu_health import expected, gpu, said, whats


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
