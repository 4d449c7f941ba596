"""Checkpoints on disk: names, manifests, completeness, publishing, quarantine and retention.

Nothing here imports torch, so the launcher on a login node and any training script can use it.

    checkpoints/
      step-40/                    published: complete, unless someone damaged it
        manifest.json             written last; without it the checkpoint does not count
        .metadata, __0_0.distcp   what torch.distributed.checkpoint wrote
      step-50.tmp-3/              being written by attempt 3
      step-20.old-3/              being deleted by attempt 3
      step-30.quarantined-2/      found damaged by attempt 2; QUARANTINE.txt says why
      LATEST                      for people; nothing reads what it says
"""

from orchestrator.checkpoint.damage import (
    Fault,
    Hint,
    damage,
    insist,
    no_hint,
    on_this_node,
    unreadable,
)
from orchestrator.checkpoint.listing import (
    Checkpoint,
    has_history,
    inspect,
    list_checkpoints,
    newest_complete,
    newest_wanted,
    wanted,
)
from orchestrator.checkpoint.manifest import (
    FileEntry,
    Manifest,
    describe_files,
    read_manifest,
)
from orchestrator.checkpoint.names import published_name, scratch_name
from orchestrator.checkpoint.publish import discard, prepare, publish, quarantine
from orchestrator.checkpoint.retention import clean, doomed, retain

__all__ = [
    "Checkpoint",
    "Fault",
    "FileEntry",
    "Hint",
    "Manifest",
    "clean",
    "damage",
    "describe_files",
    "discard",
    "doomed",
    "has_history",
    "insist",
    "inspect",
    "list_checkpoints",
    "newest_complete",
    "newest_wanted",
    "no_hint",
    "on_this_node",
    "prepare",
    "publish",
    "published_name",
    "quarantine",
    "read_manifest",
    "retain",
    "scratch_name",
    "unreadable",
    "wanted",
]
