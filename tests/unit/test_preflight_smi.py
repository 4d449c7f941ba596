"""What nvidia-smi prints, recorded: rows, messages, links, and two H200 that are well."""

from __future__ import annotations

import pytest

from orchestrator.preflight import gpus
from orchestrator.preflight.findings import Findings
from orchestrator.preflight.smi import (
    HEALTH,
    ROWS,
    Row,
    query,
    read_links,
    read_rows,
    unknown_field,
    without,
)

from .gpu_health import expected, gpu, said


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
