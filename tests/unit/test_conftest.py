import subprocess

import pytest


def test_a_unit_test_cannot_start_a_process() -> None:
    with pytest.raises(AssertionError, match="must not start"):
        subprocess.run(["true"], check=True)


@pytest.mark.processes
def test_unless_it_says_so() -> None:
    assert subprocess.run(["true"], check=False).returncode == 0
