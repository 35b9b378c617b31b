"""Which simulators a piece of code imports, in an interpreter of its own."""

import subprocess
import sys

SIMULATORS = {
    *("ale_py", "brax", "dm_control", "envpool", "gym", "gymnax", "isaaclab", "jax", "mani_skill"),
    *("minigrid", "mujoco", "pettingzoo", "pufferlib", "pybullet", "pybullet_envs_gymnasium"),
    "sapien",
}


def imported_by(code, folder=None):
    """Return the simulators that are imported once `code` has run."""
    lines = [
        "import sys",
        f"sys.path[:0] = {sys.path!r}",
        code,
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return SIMULATORS & set(done.stdout.splitlines()[-1].split())
