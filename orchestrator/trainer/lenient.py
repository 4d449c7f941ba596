"""Loads checkpoints that an older version saved, before there was as much to save."""

from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata

# What may be missing; it keeps the value that it has at step 0. Anything else that is missing makes
# a checkpoint unusable.
_OPTIONAL = ("app.skipped.", "app.eval.", "app.trains")


class LenientPlanner(DefaultLoadPlanner):
    """Does not ask for what was added to the state later, where a checkpoint has none of it."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take the state to load, and what there is."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        if metadata is not None:
            known = metadata.state_dict_metadata
            self.state_dict = {
                key: value
                for key, value in self.state_dict.items()
                if key in known or not key.startswith(_OPTIONAL)
            }
