from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import SpecError

from .builders import spec


def test_nothing_said_keeps_a_copy() -> None:
    code = spec().code
    assert (code.live, code.extras, code.exclude, code.workdir) == (False, (), (), "live")
    assert (code.max_mib, code.max_files) == (200, 20_000)
    assert spec(code="live").code.live
    assert spec(code={"extras": ["a/"]}).code.extras == ("a",)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("dead", r"code: write `code: live`"),
        ({"live": "yes"}, r"code\.live: must be true or false"),
        ({"extra": ["a"]}, r"code\.extra: is no key here\. Did you mean 'extras'\?"),
        ({"extras": ["/etc/passwd"]}, r"code\.extras\.0: must be a path or a pattern below"),
        ({"extras": ["../a"]}, r"code\.extras\.0: must be"),
        ({"extras": ["a/../../b"]}, r"code\.extras\.0: must be"),
        ({"extras": ["~/a"]}, r"code\.extras\.0: must be"),
        ({"exclude": [""]}, r"code\.exclude\.0: must be"),
        ({"exclude": ["a\nb"]}, r"code\.exclude\.0: contains the control character"),
        ({"max_mib": 0}, r"code\.max_mib: "),
        ({"workdir": "here"}, r"code\.workdir: "),
    ],
)
def test_mistakes(code: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        spec(code=code)
