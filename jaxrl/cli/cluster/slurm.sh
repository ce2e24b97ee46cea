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

# In the background, since bash runs a trap only after the foreground command. Every start resumes;
# without a run to resume, it begins one.
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
if [ -n "$asked" ]; then # the trap ended that wait
    wait "$child"
    status=$?
fi

# 130: stopped with a checkpoint; 143: the signal came before Python could handle it.
if [ "$status" = 130 ] || [ "$asked$status" = yes143 ]; then
    # `scancel` sends SIGTERM too, and a cancelled job must not be requeued. Slurm has requeued
    # preempted jobs itself.
    if scontrol show job "$job" | grep -q JobState=RUNNING; then
        echo "requeued, to resume in $run_dir"
        scontrol requeue "$job"
    fi
fi
exit "$status"
