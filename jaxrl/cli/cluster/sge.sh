#!/bin/bash
#$ -N {{ name }}
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -o runs/
#$ -pe smp {{ cpus }}
#$ -l h_rt={{ (hours * 3600) | clock }},s_rt={{ (hours * 3600 - margin) | clock }}
#$ -notify
#$ -r y
{% if gpus %}
#$ -l gpu={{ gpus }}
{% endif %}
{% if workers %}
#$ -t 1-{{ workers }}
{% endif %}
{% for option in extra %}
#$ -{{ option }}
{% endfor %}

# Facts about Grid Engine: qsub(1), queue_conf(5). Sites name their own parallel environments (smp
# here) and GPUs (gpu), and count these by job or by slot: adapt this file.

run_dir={{ run_dir | quote }}{{ "/worker-$SGE_TASK_ID" if workers else "" }}

# In the background, since bash runs a trap only after the foreground command. Grid Engine signals
# the whole process group; the inner shell ignores its signals, which would end Python. Every start
# resumes; without a run to resume, it begins one. A task that restarts on another machine keeps its
# trials by --worker.
{% if container %}apptainer exec {{ "--nv " if gpus else "" }}{{ container | quote }} {% endif %}
sh -c 'trap "" USR1 USR2; exec "$@"' sh {{ command }} \
    --run-dir "$run_dir" --resume{{ ' --worker "$run_dir"' if workers else "" }} &
child=$!

asked=
ask() {
    # A later SIGTERM makes jaxrl stop without a checkpoint.
    trap '' USR1 USR2
    asked=yes
    kill -TERM "$child"
}
# Grid Engine sends SIGUSR2 before a kill, SIGUSR1 before a suspension and at s_rt.
trap ask USR1 USR2

wait "$child"
status=$?
if [ -n "$asked" ]; then # the trap ended that wait
    wait "$child"
    status=$?
fi

# 130: stopped with a checkpoint; 143: the signal came before Python could handle it.
if [ "$status" = 130 ] || [ "$asked$status" = yes143 ]; then
    echo "requeued, to resume in $run_dir"
    exit 99 # Grid Engine puts the job back into the queue
fi
exit "$status"
