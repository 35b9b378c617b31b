"""Runs `tests.ranks.scenarios` under torchrun, or alone."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def environment():
    paths = os.pathsep.join([str(ROOT), str(ROOT / "adapters"), *sys.path])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def launch(command, folder, seconds=180, check=True):
    """Run a command in `folder`; return what it did, its stdout and stderr together."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        timeout=seconds,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or not check, done.stdout
    return done


def start(ranks, names, folder, *, check=True, options=()):
    """Run scenarios on some ranks, in one process without torchrun where `ranks` is 0."""
    launcher = [sys.executable]
    if ranks:
        launcher = [*TORCHRUN, "--standalone", f"--nproc-per-node={ranks}", *options]
    return launch([*launcher, "-m", "tests.ranks.scenarios", *names], folder, check=check)


def start_apart(ranks, names, folder, seconds=180):
    """Run scenarios on ranks that no launcher watches over; each writes what it says to a file."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.ranks.scenarios", *names]
    running = []
    for rank in range(ranks):
        own = {**environment(), **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (Path(folder) / f"said.{rank}.txt").open("w") as said:
            running.append(subprocess.Popen(command, cwd=folder, env=own, stdout=said, stderr=said))
    try:
        for process in running:
            process.wait(seconds)
    finally:
        for process in running:
            process.kill()
    return running


def told(folder, rank=0):
    """Return what a rank has written, by the names of the scenarios."""
    return json.loads((Path(folder) / f"told.{rank}.json").read_text())
