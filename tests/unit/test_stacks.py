"""Where a rank stands, by what faulthandler wrote."""

from __future__ import annotations

import pytest

from orchestrator.judging.stacks import Place, main_thread, place

LIB = "/usr/lib/python3.11"
SITE = f"{LIB}/site-packages"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
RUNTIME = "/opt/env/lib/python3.12/site-packages/orchestrator/runtime"


def block(*frames: tuple[str, str, int], thread: str = "Thread 0x00007f37a622cb80") -> str:
    lines = [f'  File "{file}", line {line} in {function}' for function, file, line in frames]
    return "\n".join([f"{thread} (most recent call first):", *lines, ""])


HELPER = block(
    ("wait", f"{LIB}/threading.py", 331),
    ("run", f"{LIB}/threading.py", 982),
    ("_bootstrap_inner", f"{LIB}/threading.py", 1045),
    ("_bootstrap", f"{LIB}/threading.py", 1002),
    thread="Thread 0x00007f37a53e76c0",
)
LOADING = block(
    ("read", f"{LIB}/socket.py", 3),
    ("load_batch", "/work/data.py", 41),
    ("main", "/work/train.py", 9),
    ("<module>", "/work/train.py", 30),
)
VOTING = block(
    ("maximum", f"{RUNTIME}/collective.py", 40),
    ("maximum", f"{RUNTIME}/meeting.py", 37),
    ("should_stop", f"{RUNTIME}/run.py", 240),
    ("main", "/work/train.py", 12),
    ("<module>", "/work/train.py", 30),
)


def dump(*blocks: str) -> str:
    return "Timeout (0:05:00)!\n" + "\n".join(blocks)


def at(text: str) -> Place:
    found = place(text)
    assert found is not None
    return found


def test_the_main_thread_is_the_one_that_threading_did_not_start() -> None:
    assert [frame.function for frame in main_thread(dump(HELPER, HELPER, LOADING))] == [
        "read",
        "load_batch",
        "main",
        "<module>",
    ]


def test_a_thread_of_autograd_is_not_the_main_one() -> None:
    autograd = block(("hook", "/work/model.py", 5), thread="Thread 0x1")
    assert at(dump(autograd, HELPER, LOADING)).function == "load_batch"


def test_the_innermost_call_that_is_no_librarys() -> None:
    found = at(dump(HELPER, LOADING))
    assert (found.function, found.file, found.line) == ("load_batch", "data.py", 41)
    assert not found.meets
    assert str(found) == "load_batch (data.py:41)"


def test_a_rank_that_votes() -> None:
    found = at(dump(VOTING))
    assert (found.function, found.through, found.meets) == ("main", "should_stop", True)
    assert str(found) == "should_stop, called by main (train.py:12)"


def test_an_agreement_of_the_scripts_own_is_a_vote_too() -> None:
    own = block(
        ("_recv", f"{LIB}/multiprocessing/connection.py", 4),
        ("share", "/work/ranks.py", 8),
        ("maximum", "/work/ranks.py", 20),
        ("maximum", f"{RUNTIME}/meeting.py", 37),
        ("should_stop", f"{RUNTIME}/run.py", 240),
        ("main", "/work/train.py", 12),
    )
    assert str(at(dump(own))) == "should_stop, called by main (train.py:12)"


def test_a_rank_in_a_collective() -> None:
    found = at(
        dump(
            block(
                ("all_reduce", C10D, 2921),
                ("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
                ("train_step", "/work/train.py", 9),
            )
        )
    )
    assert (found.function, found.through, found.meets) == ("train_step", "all_reduce", True)


def test_waiting_inside_fsdp_has_no_name_but_counts() -> None:
    fsdp = f"{SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"
    found = at(dump(block(("wait_for_unshard", fsdp, 3), ("train_step", "/work/t.py", 9))))
    assert (found.through, found.meets) == ("", True)


def test_writing_a_checkpoint_is_work() -> None:
    writer = f"{SITE}/torch/distributed/checkpoint/filesystem.py"
    found = at(dump(block(("_write_item", writer, 3), ("save", "/work/t.py", 9))))
    assert (found.through, found.meets) == ("", False)


def test_the_trainer_is_no_library_where_it_is_installed() -> None:
    trainer = f"{SITE}/orchestrator/trainer/training.py"
    text = dump(block(("windows", f"{SITE}/numpy/core.py", 3), ("_loss_sum", trainer, 140)))
    assert str(at(text)) == "_loss_sum (training.py:140)"


def test_the_last_dump_counts() -> None:
    assert at(dump(LOADING) + dump(VOTING)).through == "should_stop"


def test_names_of_threads_as_later_pythons_write_them() -> None:
    named = LOADING.replace("(most recent", "[python] (most recent")
    assert at(dump(HELPER, named)).function == "load_batch"


def test_only_libraries() -> None:
    found = at(dump(block(("read", f"{LIB}/socket.py", 3), ("<module>", f"{LIB}/x.py", 1))))
    assert (found.function, found.file) == ("read", "socket.py")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Timeout (0:05:00)!\n",
        "nonsense\n" * 9,
        dump(HELPER),
        "Thread 0x1 (most recent call",
        "\0",
    ],
)
def test_what_tells_nothing(text: str) -> None:
    assert place(text) is None


def test_a_line_that_is_unknown_and_letters_that_do_not_print() -> None:
    text = 'Thread 0x1 (most recent call first):\n  File "/w/a\x1b[2J.py", line ??? in f\x07\n'
    assert str(at(text)) == "f (a[2J.py:0)"
