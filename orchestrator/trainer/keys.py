"""Says in a message which key of the job file it is about, as it is spelled there."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.errors import SpecError
from orchestrator.spec.train import TrainSpec

_KEY = re.compile(r"([a-z_]\w*)(?:\.\w+)*[: ]")


@contextmanager
def under(key: str) -> Iterator[None]:
    """Put ``key`` in front of what is said in here about what it names, unless it stands there.

    Raises:
        SpecError: Something was.
    """
    try:
        yield
    except SpecError as problem:
        if not str(problem).startswith(key):
            problem.args = (f"{key}: {problem}",)
        raise


@contextmanager
def in_job_file() -> Iterator[None]:
    """Spell keys in messages from here with the `train.` that they have in a job file.

    Raises:
        SpecError: Something was said.
    """
    try:
        yield
    except SpecError as problem:
        problem.args = (spelled(str(problem)),)
        raise


def spelled(text: str) -> str:
    """Return a message with the whole key where it begins with one of `train:`.

    >>> spelled("data.text_files: nothing matches x"), spelled("global_batch 6 cannot be shared")
    ('train.data.text_files: nothing matches x', 'train.global_batch 6 cannot be shared')
    >>> spelled("/data/train.json: there is no such file")
    '/data/train.json: there is no such file'
    """
    found = _KEY.match(text)
    return f"train.{text}" if found and found[1] in TrainSpec.model_fields else text
