"""The first job file of a newcomer: few keys, each with a word on it. Pure."""

import json
import re
from dataclasses import dataclass

from orchestrator.keys.fields import slurm_time
from orchestrator.profile import GpuProfile, PartitionProfile, SiteProfile

# Long enough to see a run start, save and come back; short enough to be scheduled soon.
_HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What nobody but the user can say.

    Attributes:
        name: Of the run.
        site: The profile: a name, or the path of a file.
        script: A training script, as the job file names it; None takes fsdpq's own trainer.
        text: What the own trainer reads: a pattern of files.
        workers: Workers on a node, where the site has no GPUs.
    """

    name: str
    site: str
    nodes: int = 1
    script: str | None = None
    account: str | None = None
    partition: str | None = None
    text: str = ""
    workers: int | None = None


def run_name(text: str) -> str:
    """Return a name of a run made from a folder's.

    >>> run_name("My first run!"), run_name("..."), run_name("llama-1b")
    ('My-first-run', 'first', 'llama-1b')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64].rstrip("-._")
    return plain or "first"


def partition_of(answers: Answers, profile: SiteProfile) -> PartitionProfile:
    """Return what is known of where the job goes."""
    name = answers.partition or profile.default_partition
    return profile.partitions.get(name, PartitionProfile()) if name else PartitionProfile()


def most_nodes(profile: SiteProfile, partition: PartitionProfile) -> int | None:
    """Return how many nodes a job can have; None where nobody knows."""
    if profile.scheduler == "local":
        return 1
    gpu = partition.gpu or profile.gpu
    per_node = gpu.per_node if gpu else 1
    limits = [partition.nodes, partition.max_nodes]
    gpus = [partition.max_gpus_per_user]
    # The first job is short: what counts for short jobs alone counts for it.
    gpus += [quota.gpus_per_user for quota in profile.quotas]
    limits += [limit // per_node for limit in gpus if limit]
    return min((limit for limit in limits if limit is not None), default=None)


def job_file(answers: Answers, profile: SiteProfile) -> str:
    """Return the job file."""
    partition = partition_of(answers, profile)
    return "\n".join([*_head(answers, profile, partition), "", *_program(answers, profile), ""])


def _head(answers: Answers, profile: SiteProfile, partition: PartitionProfile) -> list[str]:
    gpu = partition.gpu or profile.gpu
    lines = [
        "# Written by `fsdpq init`; yours to change.",
        "#   fsdpq submit job.yaml --dry-run   # the scripts, as they would be submitted",
        f"name: {_scalar(answers.name)}",
        f"site: {_scalar(answers.site)}",
    ]
    if profile.scheduler != "local":
        lines.append(f"nodes: {answers.nodes}{_what(gpu)}")
    if answers.workers:
        lines.append(f"gpus_per_node: {answers.workers}   # workers; on a cluster one a GPU")
        lines.append(f"cpus_per_node: {answers.workers}")
    for key, value in (("partition", answers.partition), ("account", answers.account)):
        lines += [f"{key}: {_scalar(value)}"] if value else []
    if profile.account_required and not answers.account:
        form = f" of the form {profile.account_form}" if profile.account_form else ""
        lines.append(
            f"# account: NAME   # {profile.name} needs one{form}; see `sacctmgr show assoc`"
        )
    if profile.scheduler != "local":
        lines += _times(partition)
    return lines


def _what(gpu: GpuProfile | None) -> str:
    return f"   # of {gpu.per_node} x {' '.join(gpu.model.split())}" if gpu else ""


def _times(partition: PartitionProfile) -> list[str]:
    limit_s = min(_HOUR_S, partition.time_limit or _HOUR_S)
    lines = [f'time_limit: "{slurm_time(limit_s)}"   # of one job; the run goes on in the next one']
    # How long before its end a job wants to know. A limit of minutes leaves room for less.
    lead_s = min(120, limit_s // 4)
    return [*lines, f"notice: {{lead_s: {lead_s}}}   # seconds to save in, before the time limit"]


def _program(answers: Answers, profile: SiteProfile) -> list[str]:
    if answers.script is not None:
        return [
            f"script: {_scalar(answers.script)}   # under torchrun, one worker a GPU",
            "args: []",
        ]
    return _trainer(answers, profile)


def _trainer(answers: Answers, profile: SiteProfile) -> list[str]:
    gpu = partition_of(answers, profile).gpu or profile.gpu
    world = answers.nodes * (answers.workers or (gpu.per_node if gpu else 1))
    return f"""\
train:   # fsdpq's own trainer: FSDP2, checkpoints by DCP
  model:
    # A small Llama, to see that all works. `path: /models/llama-3-8b` takes weights instead.
    config:
      model_type: llama
      vocab_size: 256
      hidden_size: 128
      intermediate_size: 344
      num_hidden_layers: 4
      num_attention_heads: 4
      num_key_value_heads: 2
      max_position_embeddings: 256
      tie_word_embeddings: true
  data:
    text_files: [{_scalar(answers.text)}]   # your own text, on a file system of all nodes
    seq_len: 128
  steps: 200
  global_batch: {world * 2}   # sequences of a step, over all {world} workers
  micro_batch: 2
  lr: 1e-3
  warmup_steps: 20
  precision: fp32   # bf16 for real models
  checkpoint: {{every_steps: 50}}""".splitlines()


def _scalar(text: str) -> str:
    """Return ``text`` as YAML reads it back, bare where it is plain.

    >>> print(_scalar("llama-1b"), _scalar("1e5"), _scalar("a: b"))
    llama-1b "1e5" "a: b"
    """
    bare = re.fullmatch(r"[A-Za-z/.][A-Za-z0-9_./-]*", text)
    words = ("true", "false", "null", "yes", "no", "on", "off")
    number = re.fullmatch(r"[-+.\d][\d.eE+-]*", text)
    return text if bare and not number and text.lower() not in words else json.dumps(text)
