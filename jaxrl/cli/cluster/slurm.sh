#!/bin/bash
#SBATCH --job-name=@@name
#SBATCH --output=runs/@@log
#SBATCH --open-mode=append
#SBATCH --nodes=@@nodes
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=@@cpus
#SBATCH --time=@@time
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
@@directives
# Facts about Slurm: https://slurm.schedmd.com/sbatch.html, srun.html, scontrol.html, preempt.html.

run_dir=@@run_dir
job=@@job

# In the background: bash runs a trap only once the command in front of it has ended. Every start
# resumes, which begins a new run where there is none.
@@command \
    --run-dir "$run_dir" --resume@@worker &
child=$!

asked=
ask() {
    # Slurm may signal several times, but a second SIGTERM makes jaxrl stop without a checkpoint.
    trap '' TERM
    asked=yes
    kill -TERM "$child"
}
trap ask TERM

wait "$child"
status=$?
if [ -n "$asked" ]; then # the trap has ended that wait
    wait "$child"
    status=$?
fi

# 130: stopped with a checkpoint; 143: the signal came when Python could not yet take it.
if [ "$status" = 130 ] || [ "$asked$status" = yes143 ]; then
    # `scancel` sends SIGTERM too, and a cancelled job must not come back; nor does a job need this
    # that Slurm has requeued itself.
    if scontrol show job "$job" | grep -q JobState=RUNNING; then
        echo "requeued, to go on in $run_dir"
        scontrol requeue "$job"
    fi
fi
exit "$status"
