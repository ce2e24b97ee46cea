"""A real Grid Engine of one machine, in a temporary directory, for tests."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster_jobs import SEARCHED, missing, output_of
from slurm_cluster import free_ports
from waiting import wait_until

PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qconf", "qstat", "qdel", "qmod", "qacct")
INSTALLED = Path("/var/lib/gridengine")
DEFAULTS = Path("/usr/share/gridengine")
SETUP = Path("/usr/lib/gridengine")
HOST = "localhost"
MISSING = missing(PROGRAMS, "gridengine-master gridengine-exec gridengine-client") or (
    None if INSTALLED.exists() else f"there is no {INSTALLED}"
)
CHANGES = {
    "min_uid": "0", "min_gid": "0", "load_report_time": "00:00:02",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false",
}  # fmt: skip
"""Of the global configuration: root's jobs run, and the records of ended ones are written soon."""
SCHEDULING = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
QUEUE = {
    "qname": "all.q", "hostlist": HOST, "slots": "4", "pe_list": "smp", "notify": "00:00:20",
    "load_thresholds": "NONE",  # tests keep the machine busy
}  # fmt: skip


class GridEngine:
    """The daemons of a cluster of one machine: `sge_qmaster` and `sge_execd`."""

    def __init__(self, root: Path):
        self.root, self.spool = root, root / "default/spool/qmaster"
        ports = free_ports(2)
        self.environment = os.environ | {
            "SGE_ROOT": str(root), "SGE_CELL": "default", "PATH": SEARCHED, "SGE_ND": "1",
            "SGE_QMASTER_PORT": str(ports[0]), "SGE_EXECD_PORT": str(ports[1]),
        }  # fmt: skip
        self.daemons: list[subprocess.Popen] = []

    def start(self) -> None:
        """Start both daemons with a queue of four slots, and wait until it takes jobs."""
        common, spool = self.root / "default/common", self.root / "spool"
        for directory in (common, spool, self.spool):
            directory.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            shutil.copytree(INSTALLED / name, self.root / name, symlinks=True)
        bootstrap = {
            "admin_user": "none", "ignore_fqdn": "true", "spooling_params": spool,
            "qmaster_spool_dir": self.spool,
        }  # fmt: skip
        (common / "bootstrap").write_text(_changed(DEFAULTS / "default-bootstrap", bootstrap))
        (common / "act_qmaster").write_text(f"{HOST}\n")
        (common / "host_aliases").write_text(f"{HOST} {socket.gethostname()}\n")
        settings = self.root / "configuration"
        changes = CHANGES | {"execd_spool_dir": self.root / "default/spool"}
        settings.write_text(_changed(DEFAULTS / "default-configuration", changes))
        self.call(SETUP / "spoolinit", "berkeleydb", "libspoolb", spool, "init")
        for kind, source in {
            "configuration": settings,
            "complexes": DEFAULTS / "util/resources/centry",
            "usersets": DEFAULTS / "util/resources/usersets",
            "managers": "root",
        }.items():
            self.call(SETUP / "spooldefaults", kind, source)
        self._begin("sge_qmaster")
        wait_until(lambda: "error" not in self.call("qconf", "-sh"), 30, 0.2)
        self.call("qconf", "-as", HOST)
        self._begin("sge_execd")
        self.call("qconf", "-Ap", DEFAULTS / "util/resources/pe/smp")
        self._set("-ssconf", "-Msconf", SCHEDULING)
        self._set("-sq", "-Aq", QUEUE)
        wait_until(lambda: "lx-amd64" in self.call("qstat", "-f"), 30, 0.2)

    def _set(self, show: str, change: str, changes: dict[str, str]) -> None:
        """Change some lines of what the master shows."""
        path = self.root / "settings"
        path.write_text(self.call("qconf", show))
        path.write_text(_changed(path, changes))
        self.call("qconf", change, path)

    def call(self, *command: object) -> str:
        """Return what a command prints."""
        return output_of(command, self.environment)

    def stop(self) -> None:
        """End all jobs and daemons."""
        self.call("qdel", "-f", "-u", "*")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(2)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _begin(self, program: str) -> None:
        with (self.root / f"{program}.out").open("a") as out:
            self.daemons.append(
                subprocess.Popen(
                    [program], env=self.environment, stdout=out, stderr=out,
                    stdin=subprocess.DEVNULL,
                )
            )  # fmt: skip


def _changed(path: Path, changes: Mapping[str, object]) -> str:
    """Return a file of lines `name value` with some other values."""
    lines = [line.split(maxsplit=1) for line in path.read_text().splitlines()]
    return "".join(
        f"{line[0]} {changes.get(line[0], ' '.join(line[1:]))}\n" for line in lines if line
    )


@contextlib.contextmanager
def running_grid_engine():
    """Yield a running Grid Engine; leave nothing of it."""
    root = Path(tempfile.mkdtemp(prefix="jaxrl-sge-", dir="/tmp"))
    root.chmod(0o755)
    engine = GridEngine(root)
    try:
        try:
            engine.start()
        except AssertionError as error:
            raise AssertionError((engine.spool / "messages").read_text()[-3000:]) from error
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(root)
