"""Text from elsewhere on a terminal."""

from __future__ import annotations

import pytest

from orchestrator.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with\ta tab\nand a line", "plain, with\ta tab\nand a line"),
        ("\x1b[31mred\x1b]0;title\a", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\u202eb\x9b1m", "a\\u202eb\\x9b1m"),
        ("caf\u00e9", "caf\u00e9"),
    ],
)
def test_what_a_terminal_would_act_on_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
