"""The command `python -m tests.faults`; run it from the clone."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]


def prepare(scratch: str) -> None:
    """Set what JAX reads when it starts, here and in the processes that cases start."""
    os.chmod(scratch, 0o755)  # jobs of other users look for their cases there
    sys.path.insert(0, str(TESTS))
    from fast_compile import FLAG

    here = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    quick = f"{FLAG} --xla_backend_optimization_level=0"
    os.environ |= {"PYTHONPATH": here, "MPLBACKEND": "Agg", "OPENBLAS_NUM_THREADS": "1"}
    os.environ["JAXRL_FAULTS_SCRATCH"] = scratch
    for name, value in {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": f"{scratch}/cache",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": quick,
    }.items():
        os.environ.setdefault(name, value)


if __name__ == "__main__":
    # Not a TemporaryDirectory: forked jobs, which end as interpreters do, would remove it.
    scratch = tempfile.mkdtemp(prefix="jaxrl-faults-")
    try:
        prepare(scratch)
        from faults.campaign import main

        sys.exit(main())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
