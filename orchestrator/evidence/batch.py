"""What lines of batch.log mean: Slurm's, the kernel's, bash's and container runtimes'. Pure.

Each pattern is bound to the way its program begins a line, so that the same words in what a
training script prints are not taken for it.
"""

import re

from orchestrator.evidence.pattern import Pattern, make
from orchestrator.rundir.attempt import Weight
from orchestrator.rundir.cause import Cause

_ENDED = (
    r"^slurmstepd(?:-\S+)?: (?:error: )?\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO "
)
# How bash names the script that a line of it failed in.
_SCRIPT = r"^\S*(?:node\.sh|script\.sbatch|slurm_script): line \d+: "

# batch.log. Sources: the strings in slurmstepd and srun of Slurm 22.05.8, 24.11.5 and 26.05.5; logs
# of nextflow#5932, HAFS#101, dmtcp#702, pyxis#61, #78, #101, ubuntu-slurm#4, ArjunaUsers#46.
BATCH: tuple[Pattern, ...] = (
    make("preempted", Cause.PREEMPTED, Weight.SLURM, _ENDED + "PREEMPTION", "preempted by Slurm"),
    make(
        "time-limit",
        Cause.TIME_LIMIT,
        Weight.SLURM,
        _ENDED + "TIME LIMIT",
        "the time limit was reached",
    ),
    make(
        "node-failure",
        Cause.NODE_FAILURE,
        Weight.SLURM,
        r"^srun: error: Node failure on (?P<node>\S+)",
        "Slurm lost the node",
        advice="Slurm puts the job back; exclude the node if it comes again",
        suspect=True,
    ),
    # The node in this line is the one that lives to tell.
    make(
        "node-failure",
        Cause.NODE_FAILURE,
        Weight.SLURM,
        _ENDED + "NODE FAILURE",
        "Slurm lost a node of the job",
    ),
    # 21.08 and later; before that "oom-kill event(s) in step 3.0 cgroup".
    make(
        "oom-kill",
        Cause.OUT_OF_MEMORY,
        Weight.ROOT,
        r"^slurmstepd(?:-\S+)?: error: Detected (?P<count>\d+) oom[-_]kill event",
        "the kernel killed {count} process(es) of the job: out of memory",
        advice="Ask for more memory (mem), or use fewer data workers or a smaller model per node",
    ),
    make(
        "oom-kill",
        Cause.OUT_OF_MEMORY,
        Weight.ROOT,
        r"^srun: error: (?P<node>\S+): tasks? \S+: Out Of Memory",
        "the kernel killed a process of the job: out of memory",
        advice="Ask for more memory (mem), or use fewer data workers or a smaller model per node",
    ),
    # Of a job in a job, and not the node's fault.
    make(
        "step-binding",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^srun: error: Task launch for \S+ failed on node \S+: (?P<why>Unable to"
        r" (?:satisfy cpu bind"
        r" request|layout tasks).*)",
        "srun could not start the nodes: {why}",
        advice="Submit from a login node and not from inside another job",
    ),
    make(
        "task-launch",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^srun: error: Task launch for \S+ failed on node (?P<node>\S+): (?P<why>.+)",
        "srun could not start the task: {why}",
        advice="Restart without this node, and tell your administrators",
        suspect=True,
    ),
    make(
        "step-create",
        Cause.LAUNCH,
        Weight.OWN,
        r"^srun: error: Unable to create step for job \S+: (?P<why>.+)",
        "srun could not start the nodes: {why}",
    ),
    make(
        "container",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^slurmstepd(?:-\S+)?: error: pyxis: (?P<why>\s*(?:\[ERROR\]|enroot-\w+:|failed to import"
        r"|child \d+ failed|container start failed).*)",
        "the container did not start: {why}",
        advice="Look at the image, at its registry and at the node's enroot",
    ),
    make(
        "container",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^FATAL:   (?P<why>.+)",
        "the container did not start: {why}",
        advice="Look at the image, and at the node's apptainer",
    ),
    make(
        "spool",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^slurmstepd(?:-\S+)?: error: execve\(\): (?P<why>\S*/slurm_script: .+)",
        "Slurm could not start the script: {why}",
        advice="The node's spool directory is broken: restart without this node",
    ),
    make(
        "execve",
        Cause.LAUNCH,
        Weight.OWN,
        r"^slurmstepd(?:-\S+)?: error: execve\(\): (?P<why>.+)",
        "Slurm could not start {why}",
    ),
    make(
        "step-setup",
        Cause.LAUNCH,
        Weight.MAYBE,
        r"^slurmstepd(?:-\S+)?: error: (?P<why>Failed to invoke (?:spank|task) plugin.*)",
        "Slurm could not set up the step: {why}",
    ),
    # slurmstepd goes on in /tmp, so this is rarely what ended the job.
    make(
        "tmpdir",
        Cause.LAUNCH,
        Weight.MAYBE,
        r"^slurmstepd(?:-\S+)?: error: (?P<why>(?:Unable to create )?TMPDIR \[.+)",
        "{why}",
    ),
    make(
        "conda",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"has not been properly configured to use 'conda activate'|Run 'conda init' before 'conda"
        r" activate'",
        "conda is not set up in a batch job's shell",
        advice="Name the environment's interpreter in the job file: `python:"
        " /path/to/env/bin/python`",
    ),
    make(
        "script-setup",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^\S+ \S+ fsdpq: (?P<why>cannot load the module .+|this node has no 'module' command.+"
        r"|cannot enter the working directory|scontrol cannot read .+)",
        "{why}",
    ),
    make(
        "disk-full",
        Cause.DISK_FULL,
        Weight.ROOT,
        r"^(?:bash|mkdir|mktemp|\S+\.sh|\S+\.sbatch|\S*slurm_script): .*(?:No space left on device"
        r"|Disk quota exceeded)",
        advice="Make room, then `fsdpq requeue`",
    ),
    make(
        "interpreter",
        Cause.CONFIGURATION,
        Weight.OWN,
        _SCRIPT + r"(?P<why>.+: (?:command not found|No such file or directory|Permission denied))",
        "the node could not start {why}",
        advice="Does `python` of the job file exist on all nodes?",
    ),
    make(
        "interpreter",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^(?P<python>\S*python\S*): (?:No module named '?torch|Error while finding module"
        r" specification for 'torch\.)",
        "{python} has no torch",
        advice="Name the interpreter with torch as `python` in the job file",
    ),
    make(
        "port",
        Cause.LAUNCH,
        Weight.OWN,
        r"Error: The server socket has failed to listen on any local network address",
        "the port of the rendezvous is in use on the head node",
        advice="The next attempt uses another port",
    ),
    make(
        "rendezvous",
        Cause.LAUNCH,
        Weight.MAYBE,
        r"Error: (?:Timed out after .* waiting for clients\. (?P<joined>\d+/\d+) clients joined|The"
        r" client socket has timed out .*|Rendezvous\w*Error.*)",
        "the nodes did not come together",
        advice="Look at why a node came late or not at all: `fsdpq logs`",
    ),
    # Only where somebody has the kernel's log printed; NVIDIA's Xid catalogue (nvidia.com, "Xid
    # Errors"): memory (48, 63, 64, 92, 94, 95, 140), bus (79), NVLink (74, 144 to 150), firmware
    # (61, 62, 119, 120, 143).
    make(
        "xid",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        r"NVRM: Xid \(PCI:[^)]*\): (?P<xid>48|6[1-4]|74|79|92|9[45]|119|12[0]"
        r"|14[03-9]|150),(?P<text>.*)",
        "the driver reports Xid {xid}: {text}",
        advice="Restart without this node, and tell your administrators",
        suspect=True,
    ),
    make(
        "xid",
        Cause.WORKER_ERROR,
        Weight.MAYBE,
        r"NVRM: Xid \(PCI:[^)]*\): (?P<xid>13|31|43|45|68|69),(?P<text>.*)",
        "the driver reports Xid {xid}, mostly of a program: {text}",
    ),
    make(
        "gpu-lost",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        r"NVRM: .*fallen off the bus",
        "a GPU has fallen off the bus",
        advice="Restart without this node, and tell your administrators",
        suspect=True,
    ),
    # What the batch shell's own `scontrol requeue` looks like: no failure (submitit#1708).
    make("requeued", Cause.NOTICE, Weight.ECHO, _ENDED + "JOB REQUEUE", "put back by a requeue"),
)

# What each line that BATCH knows has in it: most lines have not, and are passed over at once.
HINT = re.compile(
    r"slurmstepd|srun: |FATAL|fsdpq: |conda|NVRM|: line \d|No space left|quota exceeded|Error: "
    r"|python"
)
