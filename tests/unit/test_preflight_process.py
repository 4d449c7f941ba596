"""`python -m orchestrator.preflight` as node.sh starts it, with stand-ins for nvidia-smi."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.preflight import all_reduce, ranks
from orchestrator.preflight.__main__ import _why
from orchestrator.preflight.children import Output
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.smi import HEALTH, IDENTITY, without

from .gpu_health import WELL

pytestmark = pytest.mark.processes
REPOSITORY = Path(__file__).parents[2]
# Answers each question from a file, such as gpu.txt; `hang` and `code` change how.
SMI = """#!/bin/bash
echo "$*" >>"$SMI/calls"
[ ! -e "$SMI/hang" ] || exec sleep 600
case $1 in
  --query-gpu=*) what=gpu ;;
  --query-remapped-rows=*) what=rows ;;
  --query-compute-apps=*) what=apps ;;
  nvlink) what=links ;;
esac
for unknown in $(cat "$SMI/unknown" 2>/dev/null); do
  [[ $1 == *"$unknown"* ]] || continue
  printf 'Field "%s" is not a valid field to query.\\n\\n' "$unknown"
  exit 2
done
if [ -e "$SMI/$what.first" ]; then mv "$SMI/$what.first" "$SMI/gone" && cat "$SMI/gone"; exit; fi
cat "$SMI/$what.txt" 2>/dev/null
exit "$(cat "$SMI/code" 2>/dev/null || echo 0)"
"""


def table(*gpus: dict[str, str], unknown: Sequence[str] = ()) -> str:
    """What nvidia-smi prints for these changes of a GPU that is well."""
    fields: Sequence[str] = IDENTITY + HEALTH
    for name in unknown:
        fields = without(fields, name)
    lines = []
    for index, changes in enumerate(gpus):
        values = {"index": str(index), **WELL, "uuid": f"GPU-{index}", **changes}
        lines.append(", ".join(values[name] for name in fields))
    return "\n".join(lines) + "\n"


@dataclass
class Node:
    """A node with a run directory, and an nvidia-smi that says what it is told to."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def attempt(self) -> Path:
        return self.path / "run" / "attempts" / "1"

    def expects(self, **changes: Any) -> None:
        usual: dict[str, Any] = {"checks": ("gpus", "memory", "ecc", "storage"), "gpus": 2}
        text = json.dumps(Expected(**{**usual, **changes}).to_json())
        (self.path / "run" / "preflight.json").write_text(text)

    def smi(self, name: str, text: str) -> None:
        (self.path / "smi" / name).write_text(text)

    def start(self, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.preflight"],
            env={**self.environment, **more},
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def check(self, **more: str) -> tuple[int, str]:
        process = self.start(**more)
        text, _ = process.communicate(timeout=60)
        return process.returncode, text

    def found(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.attempt / "preflight" / "node-3.json").read_text())
        return found

    def calls(self) -> list[str]:
        try:
            return (self.path / "smi" / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for folder in ("bin", "smi", "run/attempts/1", "run/checkpoints", "local"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin" / "nvidia-smi").write_text(SMI)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    run = tmp_path / "run"
    made = Node(
        tmp_path,
        {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONSAFEPATH": "1",
            "SMI": str(tmp_path / "smi"),
            "SLURM_NODEID": "3",
            "SLURMD_NODENAME": "n4",
            "FSDPQ_RUN_DIR": str(run),
            "FSDPQ_ATTEMPT_DIR": str(run / "attempts" / "1"),
            "FSDPQ_CHECKPOINT_DIR": str(run / "checkpoints"),
            "FSDPQ_LOCAL_DIR": str(tmp_path / "local"),
        },
    )
    made.expects()
    made.smi("gpu.txt", table({}, {}))
    yield made
    assert list((run / "checkpoints").iterdir()) == []


def test_a_node_that_is_fit(node: Node) -> None:
    code, text = node.check()
    assert (code, text) == (0, "")
    found = node.found()
    assert (found["node"], found["ok"], found["problems"]) == ("n4", True, [])
    assert abs(found["at"] - time.time()) < 60


def test_a_node_goes_by_its_node_rank(node: Node) -> None:
    node.check(FSDPQ_NODE="1")
    result = node.path / "run/attempts/1/preflight/node-1.json"
    assert json.loads(result.read_text())["node"] == "n4"


def test_a_node_that_is_not(node: Node) -> None:
    node.smi("gpu.txt", table({}, {"pstate": "[GPU requires reset]"}))
    code, text = node.check()
    assert code == 76
    why = "GPU 1 (GPU-1) does not answer: GPU requires reset"
    assert text == f"fsdpq: node 3 (n4) is unfit: gpus: {why}\n"
    assert '"ok": false' in (node.attempt / "preflight" / "node-3.json").read_text()
    assert node.found()["problems"] == [{"check": "gpus", "kind": "node", "what": why}]


def test_a_gpu_that_fell_off_the_bus(node: Node) -> None:
    node.smi(
        "gpu.txt", "Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error\n"
    )
    node.smi("code", "255")
    code, text = node.check()
    assert code == 76
    assert "Unable to determine the device handle for GPU0000:0B:00.0" in text


def test_an_nvidia_smi_that_hangs_is_a_finding(node: Node) -> None:
    node.expects(timeout_s=1)
    node.smi("hang", "")
    began = time.monotonic()
    code, text = node.check()
    assert code == 76
    assert "nvidia-smi gave no answer in time" in text
    assert time.monotonic() - began < 30


def test_a_node_without_nvidia_smi_is_passed_over(node: Node) -> None:
    (node.path / "bin" / "nvidia-smi").unlink()
    code, text = node.check()
    assert (code, node.found()["ok"]) == (0, True)
    assert text == "fsdpq: node 3 (n4): note: there is no nvidia-smi here\n"


def test_a_driver_that_does_not_know_a_field_is_asked_for_the_others(node: Node) -> None:
    neither = ["gpu_recovery_action", "reset_status.reset_required"]
    ecc = {"ecc.errors.uncorrected.volatile.total": "2"}
    node.smi("unknown", "\n".join(neither))
    node.smi("gpu.txt", table(ecc, {"memory.used": "[GPU is lost]"}, unknown=neither))
    code, text = node.check()
    assert code == 76
    assert "GPU 0 (GPU-0): 2 uncorrected memory errors" in text
    assert "GPU is lost" in text


def test_a_driver_before_570_says_in_its_own_word_that_a_gpu_needs_a_reset(node: Node) -> None:
    node.smi("unknown", "gpu_recovery_action")
    changes = {"reset_status.reset_required": "Yes"}
    node.smi("gpu.txt", table({}, changes, unknown=["gpu_recovery_action"]))
    code, text = node.check()
    assert code == 76
    assert "GPU 1 (GPU-1): the driver asks for a reset" in text


def test_a_driver_without_the_older_word_is_asked_once(node: Node) -> None:
    node.smi("unknown", "reset_status.reset_required")
    assert node.check() == (0, "")
    assert sum(call.startswith("--query-gpu=") for call in node.calls()) == 1


def test_memory_that_is_let_go_while_one_looks_again_is_well(node: Node) -> None:
    node.smi("gpu.first", table({}, {"memory.used": "70000"}))
    assert node.check() == (0, "")
    assert sum(call.startswith("--query-gpu=") for call in node.calls()) == 2


def test_memory_that_stays_in_use_is_named_with_its_process(node: Node) -> None:
    node.smi("gpu.txt", table({}, {"memory.used": "70000"}))
    node.smi("apps.txt", "GPU-1, 4711, 69000, python3\n")
    code, text = node.check()
    assert code == 76
    assert "GPU 1 (GPU-1): 68.4 GiB in use by python3 (pid 4711)" in text


def test_a_checkpoint_directory_that_is_gone_is_the_storages_fault(node: Node) -> None:
    gone = node.path / "run" / "elsewhere"
    code, text = node.check(FSDPQ_CHECKPOINT_DIR=str(gone))
    assert code == 76
    assert f"storage: {gone}: cannot be written: No such file or directory" in text
    assert [problem["kind"] for problem in node.found()["problems"]] == ["storage"]


def test_what_cannot_be_saved_is_printed_all_the_same(node: Node) -> None:
    node.smi("gpu.txt", table({}))
    code, text = node.check(FSDPQ_ATTEMPT_DIR="/proc/nowhere")
    assert code == 76
    assert "1 GPUs, and 2 are needed" in text
    assert "/proc/nowhere/preflight/node-3.json could not be written: FileNotFoundError: " in text


@pytest.mark.parametrize(
    ("saved", "why"),
    [
        (Output(None, ""), "it took more than 10 s; its file system is slow or hangs"),
        (
            Output(1, "Traceback\n  line\nOSError: [Errno 28] No space\n"),
            "OSError: [Errno 28] No space",
        ),
        (Output(-9, ""), "its process ended with code -9"),
    ],
)
def test_why_a_result_was_not_written(saved: Output, why: str) -> None:
    assert _why(saved) == why


@pytest.mark.parametrize("content", [None, "{", "[]", '{"checks": 3}', '{"gpus": 1}'])
def test_a_check_that_breaks_stops_nobody(node: Node, content: str | None) -> None:
    path = node.path / "run" / "preflight.json"
    path.unlink() if content is None else path.write_text(content)
    code, text = node.check()
    assert code == 0
    assert text.startswith("fsdpq: the check of this node broke: ")
    assert text.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_notice_ends_it_at_once_and_says_nothing_about_the_node(
    node: Node, number: signal.Signals
) -> None:
    node.smi("hang", "")
    process = node.start()
    deadline = time.monotonic() + 30
    while not node.calls():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == 75
    assert not (node.attempt / "preflight").exists()


def test_the_jobs_own_gpus_alone_count(node: Node) -> None:
    node.smi("gpu.txt", table({"pstate": "[GPU requires reset]"}, {}, {}))
    assert node.check(CUDA_VISIBLE_DEVICES="1,2") == (0, "")
    assert node.check(CUDA_VISIBLE_DEVICES="0,1")[0] == 76


def reduced(node: Node, monkeypatch: pytest.MonkeyPatch, *fates: str) -> list[str]:
    """What an all-reduce finds whose ranks are bash; FOLDER and RANK are set."""
    program = "\n".join(f"[ $RANK != {rank} ] || {{ {fate}; }}" for rank, fate in enumerate(fates))
    stand_in = node.path / "bin" / "python"
    stand_in.write_text(f"#!/bin/bash\nRANK=$3 FOLDER=$5\n{program}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setattr(ranks, "GRACE_S", 0.5)
    expected = Expected(checks=("all_reduce",), workers=len(fates), all_reduce_timeout_s=30)
    local = node.path / "local"
    found = all_reduce.check_all_reduce(expected, temporary=str(local), environment=os.environ)
    assert list(local.iterdir()) == []
    return [problem.what for problem in found.problems] + list(found.notes)


def says(**facts: Any) -> str:
    return f"echo '{json.dumps(facts)}' >$FOLDER/rank-$RANK.json"


def test_the_others_are_not_waited_for_once_a_rank_has_failed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = f"{says(stage='device')}; exec sleep 600"
    began = time.monotonic()
    found = reduced(node, monkeypatch, waits, "echo 'CUDA error: device lost'; exit 3")
    assert found == ["GPU 1 failed: exit code 3: CUDA error: device lost"]
    assert time.monotonic() - began < 25


def test_ranks_that_came_through_and_ranks_without_torch(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = says(stage="done", sum_ok=True, work_s=0.03, device="cuda:0")
    assert reduced(node, monkeypatch, well, well) == []
    lack = "echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1"
    [note] = reduced(node, monkeypatch, lack, lack)
    assert note.startswith("all_reduce: not run: exit code 1: ModuleNotFoundError")


def test_nothing_heavy_is_imported(node: Node) -> None:
    program = "import orchestrator.preflight.__main__, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {"torch", "numpy", "pydantic", "yaml", "click", "jinja2", "submitit", "asyncio"}
    assert not heavy & set(done.stdout.split())
