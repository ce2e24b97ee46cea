"""Faults: do damage to jaxrl at random, and count what it survives.

    python -m tests.faults --minutes 5 --seed 0 --out results.json    # a campaign
    python -m tests.faults --only KIND --case-seed N                   # one case of it again
    python -m tests.faults --once                                      # each kind once
    python -m tests.faults --each --only simulator-raises              # each variant once
    python -m tests.faults --soak --minutes 30 --out soak.json         # memory of long programs

A *kind* of fault is a `Kind` (`outcomes.py`): a name and a function `run(rng, directory) ->
Outcome`. A module of kinds lists them in `KINDS` and is named in `campaign.MODULES`. A *case* is a
kind with a seed: `rng` is a `random.Random` of both, and all that the case draws comes from it.
A kind may list its *variants*, such as every wrong that a simulator can do: the seed also says
which one a case tries, and the results count how many were.

`run` does the damage in an empty `directory` and says what came of it:

- `SURVIVED`: the work went on exactly, or ended with a named error and nothing saved was lost;
- `LOST`: what had been saved is gone, or cannot be resumed;
- `SILENTLY_WRONG`: it ended well with another result than undisturbed, or took bad input;
- `UNNAMED_ERROR`: it ended by an error that does not say which value, file or flag is wrong;
- `HUNG`: it did not end in time, or left processes behind;
- `SKIPPED`: this machine does not allow the fault (no PostgreSQL, no mounts); the detail says why.

It may return an `Outcome`, or raise `Damage(verdict, detail)` at any depth. Any other exception is
a defect of the case and counts as an unnamed error.

The campaign's process runs no JAX program. Work runs in *jobs* (`jobs.py`), which are forked from
it with jaxrl imported, but before JAX has started anything: `job = start(function, *arguments)`,
`ended = job.end(seconds)`, or both by `ended = call(function, *arguments)`. The function may patch
whatever it likes: nobody else sees it. `job.signal(SIGKILL)` damages it. An `Ended` has the
returned `value`, or the `error` with its type and text, the exit `status` and the printed `output`;
a job that did not end in time is killed and raises `Damage(HUNG)`. Command lines are jobs too:
`call(command, "train", "ppo", "--seed", "x")`. `value_of(function, *arguments)` is for work that
nothing disturbs.

Quick cases, hundreds a minute, share a *warm process* (`warm.py`), where JAX has started and
programs are compiled: `WARM.call(function, *arguments)` also returns an `Ended`. If a call hangs or
ends the process, the next one gets a new process. Such a kind has many cases `per_round`.

A *named* error is of one of the documented types (`jobs.NAMED`: ValueError, OSError, ImportError,
FloatingPointError; of a command, a last line "error: ..." instead of a traceback), and its text has
the words that the case expects: the value, file or flag. `refused(ended, "--seed", "x")` gives the
outcome of input that must be refused, `check_named(ended, *words)` raises unless an error is named.

After each case no process may be left. Linux only: processes are found in /proc.
"""
