"""Each example runs as its first line says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    if "from transformers" in path.read_text(encoding="utf-8"):
        pytest.importorskip("transformers", reason="transformers is not installed")
    command = [sys.executable, "-W", "error::UserWarning", str(path), "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
