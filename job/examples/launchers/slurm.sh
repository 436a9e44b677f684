#!/bin/bash
# A job on several nodes under Slurm, with an agent on each and an analyzer on the first:
#
#   sbatch --nodes 2 --export ALL,RANKS_PER_NODE=8 slurm.sh train.py ARGS
#
# What the analyzer writes lies in the directory of submission, which all nodes share:
#
#   tensorwire-job watch --analyzer-dir tensorwire-JOBID/analyzer
#
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
set -euo pipefail

head=$(hostname) # this script runs on the first node
port=$((20000 + 2 * (SLURM_JOB_ID % 5000))) # two jobs may share a node
state=$SLURM_SUBMIT_DIR/tensorwire-$SLURM_JOB_ID
umask 077
mkdir "$state"
head -c 32 /dev/urandom > "$state/job.key"

tensorwire-job analyzer --key-file "$state/job.key" --bind "$head" --port "$port" --analyzer-dir "$state/analyzer" \
  --hang-seconds "${HANG_SECONDS:-300}" > "$state/analyzer.log" 2>&1 &
analyzer=$!
# --overlap: agents take no CPU away from the ranks.
# shellcheck disable=SC2016 # each node's own shell expands it
srun --overlap --label bash -c 'exec tensorwire-job agent --node "$SLURMD_NODENAME" "$@"' agent \
  --analyzer "$head:$port" --key-file "$state/job.key" > "$state/agents.log" 2>&1 &
agents=$!

code=0
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${RANKS_PER_NODE:-8}" \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:$((port + 1))" \
  -m tensorwire_job "$@" || code=$?

# In the log, how it ended; it takes 10 s until a rank without a sign of life counts as lost.
tensorwire-job diagnose --analyzer-dir "$state/analyzer" || true
kill "$analyzer" "$agents" || true
wait || true
exit "$code"
