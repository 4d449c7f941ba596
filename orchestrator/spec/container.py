"""The job file's `container:`: the image that the job runs in, and what it sees of the host."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from orchestrator.keys.fields import Line, Strict
from orchestrator.keys.mounts import Mount

_IMAGE = re.compile(r"[\w/.~][\w@%+=.~/:#-]*")
_FILES = (".sqsh", ".squashfs", ".sif", ".img", ".toml")


def _image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError(
            "must be the path of an image (.sqsh, .sif), or its name in a registry as the site's"
            " runtime spells it"
        )
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("must be an absolute path in the container")
    return text


class ContainerSpec(Strict):
    """What the job runs in.

    Attributes:
        image: A file, or a name in a registry as the runtime spells it.
        mounts: HOST[:CONTAINER[:ro]], besides the site's and those that every job gets: its run
            directory, working directory, script, model and data.
        options: More options of the runtime, one word each.
        workdir: The working directory in the container; where the job was submitted from, if left
            out.
    """

    image: Annotated[Line, AfterValidator(_image)]
    mounts: tuple[Mount, ...] = ()
    options: tuple[Line, ...] = ()
    workdir: Annotated[Line, AfterValidator(_absolute)] | None = None

    def relative_to(self, base: Path) -> "ContainerSpec":
        """Return it with an image that is a file named by its whole path."""
        if "://" in self.image or not self._is_file:
            return self
        image = str((base / Path(self.image).expanduser()).absolute())
        return self.model_copy(update={"image": _image(image)})

    @property
    def _is_file(self) -> bool:
        return self.image.endswith(_FILES) or self.image.startswith(("/", "./", "../", "~/"))


def _short(value: Any) -> Any:
    return {"image": value} if isinstance(value, str) else value


Container = Annotated[ContainerSpec, BeforeValidator(_short)]
