#!/bin/bash
# One run as a Slurm job: slurm_job.sh PYTHON FOLDER PROCESSES NAME…, submitted by ccl.runs.slurm.
# An array has a NAME for each index; FOLDER/slurm/NAME.sh says what is to be done (ccl.runs.slurm).
# PROCESSES is 0, or the number that torchrun starts on each node of the job.
PYTHON=$1 FOLDER=$2 PROCESSES=$3
shift $((3 + ${SLURM_ARRAY_TASK_ID:-0}))
. "$FOLDER/slurm/$1.sh" || exit 1
exec >>"$LOG" 2>&1
echo "Slurm job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1))"

# The number of threads that the settings, or those of the run that is resumed, name; else the job's cores are shared out.
THREADS=$(sed -sn 's/^threads: \([0-9]\{1,\}\)$/\1/p' "${SETTINGS_FILES[@]}" 2>/dev/null | head -n 1)
THREADS=${THREADS:-$((${SLURM_CPUS_ON_NODE:-1} / (PROCESSES > 0 ? PROCESSES : 1)))}
THREADS=$((THREADS > 0 ? THREADS : 1))
export OMP_NUM_THREADS=$THREADS
export PYTHONSAFEPATH=1  # as -P, also for what torchrun starts: nothing is imported from the working directory
CCL=(-m ccl "${COMMAND[@]}" --set "threads=$THREADS")

saved() { ls "$SAVED" 2>/dev/null; }
stop() {  # the run finishes its batch and saves; srun would kill its tasks if it were signalled itself
  if [ "$PROCESSES" -gt 0 ]; then scancel --signal=TERM "$SLURM_JOB_ID.0"; else kill -TERM "$RUN" 2>/dev/null; fi  # it may be gone
}
IS_TIME_UP=no BEFORE=$(saved)
trap 'IS_TIME_UP=yes; stop' USR1  # some time before the time is up
trap stop TERM                    # cancelled, preempted or requeued by others

if [ "$PROCESSES" -gt 0 ]; then
  HEAD=${CCL_HEAD:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
  PORT=${CCL_PORT:-$((20000 + SLURM_JOB_ID % 20000))}  # by job, as several may share a node
  srun --ntasks-per-node=1 "$PYTHON" -m torch.distributed.run \
    --nnodes "$SLURM_NNODES" --nproc-per-node "$PROCESSES" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --rdzv-endpoint "$HEAD:$PORT" "${CCL[@]}" &
else
  "$PYTHON" "${CCL[@]}" &
fi
RUN=$!
wait "$RUN"
CODE=$?
while kill -0 "$RUN" 2>/dev/null; do  # a signal cuts the wait short
  wait "$RUN"
  CODE=$?
done
if [ "$IS_TIME_UP" = yes ] && [ "$CODE" -ne 0 ]; then
  if [ "$(saved)" = "$BEFORE" ]; then  # or it would be requeued for ever
    echo 'ccl: the time of this job was up before anything new was saved; give it more: --slurm "--time=…"'
  else
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$CODE"
