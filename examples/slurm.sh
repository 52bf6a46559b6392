#!/bin/bash
# One run on several machines by Slurm: sbatch examples/slurm.sh. It stops itself before the time is up and resumes by
# itself where it stopped. Change what is marked with <-; docs/distributed.md explains the rest, and grids of runs.
#SBATCH --job-name=ccl
#SBATCH --nodes=2                 # <-
#SBATCH --ntasks-per-node=1       # one torchrun on each machine; it starts the processes
#SBATCH --gpus-per-node=4         # <-
#SBATCH --cpus-per-task=32        # <-
#SBATCH --time=24:00:00           # <-
#SBATCH --signal=B:TERM@180       # to this script, three minutes before the time is up
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

OUT=${OUT:-runs/imagenet-full}                       # <- a folder that all machines share
PROCESSES=${SLURM_GPUS_PER_NODE:-1}                  # on each machine; encoder.batch_norm_groups is a multiple of all
PROCESSES=$((PROCESSES > 0 ? PROCESSES : 1))
HEAD=${HEAD:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}  # an address, where names do not resolve
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / PROCESSES))
export PYTHONSAFEPATH=1  # nothing is imported from the folder where the job starts

# The tasks are signalled, not srun, which would kill them: all save after the same update and leave.
IS_TIME_UP=no
trap 'IS_TIME_UP=yes; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM

srun torchrun \
  --nnodes "$SLURM_NNODES" --nproc-per-node "$PROCESSES" --max-restarts 3 \
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --rdzv-endpoint "$HEAD:${PORT:-29500}" \
  -m ccl run "${PRESET:-imagenet-full}" --data-root "${DATA:-data}" --out "$OUT" "$@" &
STEP=$!
wait "$STEP"
CODE=$?
if [ "$IS_TIME_UP" = yes ]; then
  wait "$STEP"  # the first was cut short by the signal
  CODE=$?
  [ "$CODE" -eq 0 ] || scontrol requeue "$SLURM_JOB_ID"  # the same command resumes
fi
exit "$CODE"
