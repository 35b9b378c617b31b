"""Two hosts, each a network namespace of this machine with an address of its own."""

import json
import os
import shutil
import subprocess

import pytest

from tests.ranks.launch import TORCHRUN, environment, start, told

HOSTS = {"pe-one": "10.77.0.1", "pe-two": "10.77.0.2"}


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces want root and the program ip (iproute2)")
    try:
        for name in HOSTS:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            "pe-a",
            "netns",
            "pe-one",
            "type",
            "veth",
            "peer",
            "pe-b",
            "netns",
            "pe-two",
        )
        for name, link in zip(HOSTS, ("pe-a", "pe-b"), strict=True):
            ip("-n", name, "address", "add", f"{HOSTS[name]}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield {"pe-one": "pe-a", "pe-two": "pe-b"}
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
    finally:
        for name in HOSTS:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def begin(number, name, link, folder):
    """Start torchrun on one host."""
    first = next(iter(HOSTS.values()))
    command = [
        *("ip", "netns", "exec", name, *TORCHRUN, "--nnodes=2", "--nproc-per-node=1"),
        *(f"--local-addr={HOSTS[name]}", f"--rdzv-conf=is_host={int(number == 0)}"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={first}:29500"),
        *("-m", "tests.ranks.scenarios", "cartpole", "checkpointed"),
    ]
    folder.mkdir()
    variables = {**environment(), "GLOO_SOCKET_IFNAME": link, "TP_SOCKET_IFNAME": link}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_hosts_give_the_history_of_one_process(hosts, tmp_path):
    folders = [tmp_path / name for name in HOSTS]
    running = [
        begin(number, name, hosts[name], folder)
        for number, (name, folder) in enumerate(zip(HOSTS, folders, strict=True))
    ]
    for process in running:
        said, _ = process.communicate(timeout=180)
        assert process.returncode == 0, said
    (tmp_path / "alone").mkdir()
    start(0, ["cartpole", "checkpointed"], tmp_path / "alone")
    alone = told(tmp_path / "alone")
    results = {}
    for folder in folders:
        for path in folder.glob("told.*.json"):
            results[path.name] = json.loads(path.read_text())
    assert sorted(results) == ["told.0.json", "told.1.json"]
    assert all(result == alone for result in results.values())
    written = [folder / "run" / "history.csv" for folder in folders]
    assert sum(path.exists() for path in written) == 1  # rank 0 alone writes files
