#!/bin/bash
# A job on one node under Slurm: srun starts the ranks themselves, without torchrun.
#
#   sbatch --ntasks 8 slurm_one_node.sh train.py ARGS
#   srun --jobid JOBID --overlap --ntasks 1 tensorwire-job diagnose
#
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --output=%x-%j.log
set -euo pipefail

MASTER_ADDR=$(hostname)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # two jobs may share a node
export MASTER_ADDR MASTER_PORT

# shellcheck disable=SC2016 # each rank's own shell expands it
exec srun bash -c '
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
  exec python -m tensorwire_job "$@"' rank "$@"
