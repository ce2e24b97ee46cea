#!/bin/bash
#$ -N @@name
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -o runs/
#$ -pe smp @@cpus
#$ -l h_rt=@@time,s_rt=@@soft_time
#$ -notify
#$ -r y
@@directives
# Facts about Grid Engine: qsub(1), queue_conf(5). A site names its own parallel environments (smp
# here) and GPUs (gpu), and counts these by job or by slot: adapt this file and submit.py.

run_dir=@@run_dir

# In the background: bash runs a trap only once the command in front of it has ended. Grid Engine
# signals the whole process group, and what it sends would end Python: hence the inner shell. Every
# start resumes, which begins a new run where there is none.
@@command \
    --run-dir "$run_dir" --resume@@worker &
child=$!

asked=
ask() {
    # A second SIGTERM makes jaxrl stop without a checkpoint.
    trap '' USR1 USR2
    asked=yes
    kill -TERM "$child"
}
# SIGUSR2 comes before a kill, SIGUSR1 before a suspension and at s_rt.
trap ask USR1 USR2

wait "$child"
status=$?
if [ -n "$asked" ]; then # the trap has ended that wait
    wait "$child"
    status=$?
fi

# 130: stopped with a checkpoint; 143: the signal came when Python could not yet take it.
if [ "$status" = 130 ] || [ "$asked$status" = yes143 ]; then
    echo "requeued, to go on in $run_dir"
    exit 99 # Grid Engine puts the job back into the queue
fi
exit "$status"
