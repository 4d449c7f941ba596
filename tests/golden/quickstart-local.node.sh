#!/bin/bash
# Rendered by fsdpq VERSION for the run quickstart. Runs once on each node, as the
# parent of torchrun. It takes the signals that say "this allocation will end" and leaves a note
# where the workers look at every step.
set -u

node=${SLURM_NODEID:-0}
note=''
pending=''
checking=''
# Builtins only: bash runs this in the middle of anything.
# shellcheck disable=SC2317  # called by the traps below
on_notice() {
  caught=1
  pending=$1
  printf '%s %(%s)T\n' "$1" -1 >>"$FSDPQ_ATTEMPT_DIR/notice.$node"
  [ -z "$note" ] || printf '%s %(%s)T\n' "$1" -1 >>"$note"
  [ -z "$checking" ] || kill -TERM "$checking" 2>/dev/null
}
trap 'on_notice USR2' USR2
trap 'on_notice TERM' TERM

# Waits for a child to end, whatever signals come, and leaves its exit code in `code`. A trapped
# signal ends `wait` early, and one that comes while a trap runs ends the next `wait` at once, with
# no trap to show for it (seen with bash 5.2). Only a child that has ended can bring three such in a
# row. Where a signal comes at the very moment of its end, bash loses its code, and says -1.
# There is no $(...) here: a signal in the middle of one loses its trap.
await() {
  local silent=0 lost=''
  while [ "$silent" -lt 3 ]; do
    caught=0
    wait "$1"
    code=$?
    ((code < 0 || code > 128)) || return 0
    ((code > 0)) || lost=1
    silent=$((caught ? 0 : silent + 1))
  done
  [ -z "$lost" ] || code=-1
}

# On the node's own disk: a shared file system shows a new file too late.
# TMPDIR comes from where the job was submitted, and may not be there.
local_dir=$(mktemp -d "${TMPDIR:-/tmp}/fsdpq.XXXXXXXX" 2>/dev/null) ||
  local_dir=$(mktemp -d /tmp/fsdpq.XXXXXXXX) || exit 1
trap 'rm -rf -- "$local_dir"' EXIT
note=$local_dir/notice
export FSDPQ_LOCAL_DIR=$local_dir
export FSDPQ_NOTICE_FILE=$note
export FSDPQ_NODE=$node
# Whose metadata service the monitor asks for reclaims that the scheduler does not know of.
export FSDPQ_CLOUD=none
export NCCL_DEBUG_FILE=$FSDPQ_ATTEMPT_DIR/nccl/%h.%p.log
export TORCH_FR_DUMP_TEMP_FILE=$FSDPQ_ATTEMPT_DIR/nccl/flight-recorder-rank-
export TORCHELASTIC_ERROR_FILE=$FSDPQ_ATTEMPT_DIR/errors/node-$node.json
export TRITON_CACHE_DIR=$local_dir/triton
export TORCHINDUCTOR_CACHE_DIR=$local_dir/inductor
# Fixed, because the order of a sum depends on it.
: "${OMP_NUM_THREADS:=1}"
export OMP_NUM_THREADS

# A folder called orchestrator in the working directory is not fsdpq's.
export PYTHONSAFEPATH=1

# Is this node fit? 76 says that it is not; what was found is in attempts/N/preflight. A check that
# breaks holds nobody up, and a notice ends it at once.
if [ -z "$pending" ]; then
  PYTHONSAFEPATH=1 /home/alice/.venv/bin/python -m orchestrator.preflight &
  checking=$!
  [ -z "$pending" ] || kill -TERM "$checking" 2>/dev/null
  await "$checking"
  checking=''
  if [ -z "$pending" ]; then
    case $code in
      0) ;;
      76)
        printf '76\n' >"$FSDPQ_ATTEMPT_DIR/node-$node.exit"
        exit 76
        ;;
      *) echo "fsdpq: node $node: its check ended with $code; going on without it" ;;
    esac
  fi
fi

if [ -n "$pending" ]; then
  echo "fsdpq: node $node: the notice $pending came before the start"
  exit 75
fi

# Notes what this attempt runs with, on the side; nothing waits for it, and it ends by itself.
if [ "$node" = 0 ] && [ -e "$FSDPQ_RUN_DIR/recorder.py" ]; then
  /home/alice/.venv/bin/python "$FSDPQ_RUN_DIR/recorder.py" </dev/null >/dev/null 2>&1 &
fi

# Where setpriv can do it (util-linux 2.33), the workers' parent dies with this shell.
tie=()
! setpriv --pdeathsig KILL true 2>/dev/null || tie=(setpriv --pdeathsig KILL)

# A light process that listens to the cloud and looks after this node. A notice to all processes is
# not for it. Where the job's Python does not have it, Python says so, and the job goes on.
(
  trap '' USR2
  export PYTHONSAFEPATH=1
  exec ${tie[@]+"${tie[@]}"} /home/alice/.venv/bin/python -m orchestrator.monitor
) >&2 &
monitor=$!

# torchrun would die of USR2, leaving its workers orphaned, and answer TERM by
# killing them. It inherits "ignore" here, and is told to handle nothing but INT. The workers block
# both signals and take them by themselves.
(
  trap '' USR2 TERM
  exec ${tie[@]+"${tie[@]}"} /home/alice/.venv/bin/python -m torch.distributed.run \
    --nnodes="${SLURM_JOB_NUM_NODES:-1}" --nproc-per-node=2 \
    --node-rank="$node" --rdzv-backend=static \
    --master-addr="$FSDPQ_HEAD" --master-port="$FSDPQ_PORT" \
    --max-restarts=0 --signals-to-handle=SIGINT \
    --log-dir="$FSDPQ_ATTEMPT_DIR/logs/node-$node" --redirects=3 --tee=3 \
    -m orchestrator.trainer /shared/runs/quickstart/train.json
) &
await "$!"
printf '%d\n' "$code" >"$FSDPQ_ATTEMPT_DIR/node-$node.exit"

# The monitor ends with the job; nobody waits long for it. Asked of bash whether it still runs: the
# process id of one that ended long ago may be another's by now.
left=$(jobs -pr)
if [ -n "$left" ]; then
  kill -TERM "$monitor" 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 "$monitor" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$monitor" 2>/dev/null
else
  echo "fsdpq: node $node: the monitor ended before the job did" >&2
fi
exit "$code"
