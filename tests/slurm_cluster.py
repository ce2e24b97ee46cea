"""A real Slurm cluster of two nodes on this machine, in a temporary directory, for tests."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from cluster_jobs import SEARCHED, missing, output_of
from waiting import wait_until

NODES = ("jaxrl-node1", "jaxrl-node2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
MISSING = missing(PROGRAMS, "slurmctld slurmd slurm-client munge")
HOSTS = Path("/etc/hosts")
SETTINGS = """
ClusterName=jaxrl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=10
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=2
NodeName={nodes[0]} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=2 State=UNKNOWN
NodeName={nodes[1]} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


class Cluster:
    """The daemons of a cluster: `munged`, `slurmctld`, and a `slurmd` for each node."""

    def __init__(self, directory: Path):
        self.directory, self.daemons = directory, {}
        self.environment = os.environ | {
            "SLURM_CONF": str(directory / "slurm.conf"),
            "PATH": SEARCHED,
        }

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are idle."""
        directory = self.directory
        (directory / "state").mkdir()
        key = directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = free_ports(3)
        settings = SETTINGS.format(
            host=socket.gethostname(), port=ports[0], ports=ports[1:], nodes=NODES,
            directory=directory,
        )  # fmt: skip
        (directory / "slurm.conf").write_text(settings)
        files = (f"--{name}-file={directory}/munge.{name}" for name in ("pid", "log", "seed"))
        self._begin(
            "munged", "--foreground", "--force", f"--key-file={key}",
            f"--socket={directory}/munge.socket", *files,
        )  # fmt: skip
        wait_until((directory / "munge.socket").exists, 20)
        self._begin("slurmctld", "-D", "-i")
        for node in NODES:
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start a node's `slurmd`, and wait until the node is idle."""
        (self.directory / f"spool-{node}").mkdir(exist_ok=True)
        self._begin("slurmd", "-D", "-N", node, name=node)
        wait_until(lambda: "State=IDLE" in self.call("scontrol", "show", "node", node), 60, 0.2)

    def kill_node(self, node: str) -> None:
        """Kill a node's `slurmd`, as if the machine had failed."""
        self.daemons[node].kill()
        self.daemons[node].wait()

    def call(self, *command: object) -> str:
        """Return what a command of Slurm prints."""
        return output_of(command, self.environment)

    def stop(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.call("scancel", "--user=root")
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self.call("squeue", "--noheader").strip(), 30, 0.2)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def logs(self) -> str:
        """Return the end of each daemon's log."""
        texts = (f"{p.name}\n{p.read_text()[-3000:]}" for p in self.directory.glob("*.log"))
        return "\n".join(texts)

    def _begin(self, *command: str, name: str = "") -> None:
        with (self.directory / f"{name or command[0]}.out").open("a") as out:
            self.daemons[name or command[0]] = subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )


@contextlib.contextmanager
def running_cluster():
    """Yield a running cluster; leave nothing of it."""
    assert pwd.getpwuid(os.geteuid()).pw_name == "root"
    # Not pytest's tmp_path: a socket's path has at most 107 characters.
    directory = Path(tempfile.mkdtemp(prefix="jaxrl-slurm-", dir="/tmp"))
    directory.chmod(0o755)
    hosts = HOSTS.read_text()
    cluster = Cluster(directory)
    try:
        with HOSTS.open("a") as file:
            file.write("".join(f"127.0.0.1 {node}\n" for node in NODES))
        try:
            cluster.start()
        except AssertionError as error:
            raise AssertionError(cluster.logs()) from error
        yield cluster
    finally:
        cluster.stop()
        HOSTS.write_text(hosts)
        shutil.rmtree(directory)


def free_ports(number: int) -> list[int]:
    """Return ports that no process uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
