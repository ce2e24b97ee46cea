#!/bin/bash
#SBATCH --job-name={{ name }}
#SBATCH --output=runs/%x-{{ "%A_%a" if workers else "%j" }}.log
#SBATCH --open-mode=append
#SBATCH --nodes={{ nodes }}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={{ cpus }}
#SBATCH --time={{ (hours * 3600) | clock }}
#SBATCH --signal={{ "TERM" if nodes > 1 else "B:TERM" }}@{{ margin }}
#SBATCH --requeue
{% if gpus %}
#SBATCH --gres=gpu:{{ gpus }}
{% endif %}
{% if workers %}
#SBATCH --array=1-{{ workers }}
{% endif %}
{% for option in extra %}
#SBATCH --{{ option }}
{% endfor %}

# Facts about Slurm: https://slurm.schedmd.com/sbatch.html, srun.html, scontrol.html, preempt.html.

run_dir={{ run_dir | quote }}{{ "/worker-$SLURM_ARRAY_TASK_ID" if workers else "" }}
# Each task of an array has a job id, but the last one's is the id of the whole array.
job="{{ "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if workers else "$SLURM_JOB_ID" }}"

# In the background, since bash runs a trap only after the foreground command. Every start resumes;
# without a run to resume, it begins one. A task that restarts on another machine keeps its trials by
# --worker. Once a process has ended, srun gives the others a minute to write a checkpoint, and stops
# them if that process has failed. It kills all of them if it gets SIGTERM itself, so with several
# nodes Slurm signals the processes, and this script does not. Slurm 22.05 and 23.02 do not pass the
# number of CPUs on to srun: the release notes of 22.05.
{% if nodes > 1 %}srun --cpus-per-task={{ cpus }} --wait=60 {% endif %}
{% if container %}apptainer exec {{ "--nv " if gpus else "" }}{{ container | quote }} {% endif %}
{{ command }} \
    --run-dir "$run_dir" --resume{{ ' --worker "$run_dir"' if workers else "" }} &
child=$!

asked=
ask() {
    # Slurm may signal several times, but a later SIGTERM makes jaxrl stop without a checkpoint.
    trap '' TERM
    asked=yes
{% if nodes == 1 %}
    kill -TERM "$child"
{% endif %}
}
trap ask TERM

wait "$child"
status=$?
if [ -n "$asked" ]; then # the trap ended that wait
    wait "$child"
    status=$?
fi

requeue() {
    # `scancel` sends SIGTERM too, and a cancelled job must not be requeued. Slurm has requeued
    # preempted jobs itself.
    if scontrol show job "$job" | grep -q JobState=RUNNING; then
        echo "requeued, to resume in $run_dir"
        scontrol requeue "$job"
    fi
}

# 130: stopped with a checkpoint; 143: the signal came before Python could handle it.
if [ "$status" = 130 ] || [ "$asked$status" = yes143 ]; then
    requeue
fi
{% if nodes > 1 %}

# 137: a process was killed; 75: it lost another one (jaxrl/distributed/liveness.py).
most=5
lost="runs/{{ name }}-$job.lost"
if [ -z "$asked" ] && { [ "$status" = 137 ] || [ "$status" = 75 ]; }; then
    count=$(($(cat "$lost" 2>/dev/null || echo 0) + 1))
    echo "$count" >"$lost"
    if [ "$count" -le "$most" ]; then
        echo "a process was lost, for the $count. time of at most $most"
        requeue
    else
        echo "a process was lost more than $most times; delete $lost and submit the job again"
    fi
fi
{% endif %}
exit "$status"
