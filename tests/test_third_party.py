"""A simulator that brings its own adapter is found once its package is installed."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "third_party"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a new environment that has the package, and sees what is installed here."""
    folder = tmp_path_factory.mktemp("third_party") / "venv"
    venv.create(folder)
    found = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    seen = [sysconfig.get_path("purelib"), str(ROOT), str(ROOT / "adapters")]
    (found / "seen.pth").write_text("\n".join(seen))
    interpreter = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", str(EXAMPLE)], check=True, capture_output=True)
    return interpreter


def run(python, *arguments):
    done = subprocess.run(
        [python, "-W", "error::UserWarning", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_is_installed_and_not_read_from_the_examples(python):
    where = run(python, "-c", "import beam; print(beam.__file__)").strip()
    assert Path(where).is_relative_to(Path(python).parent.parent)


def test_its_environments_evolve_and_keep_the_contract(python):
    said = run(python, str(EXAMPLE / "evolve_beam.py"))
    steps = float(said.partition("middle: ")[2].partition(" of")[0])
    assert steps > 100


def test_its_ids_have_as_many_slots_as_are_asked_for(python):
    code = (
        "from populora_envs import interact_with_env\n"
        "with interact_with_env('beam/one', num_envs=5) as interactor: print(interactor.num_envs)"
    )
    assert run(python, "-c", code) == "5\n"


def test_without_the_package_nobody_knows_its_ids():
    from populora_envs.simulators import make

    with pytest.raises(ValueError, match="there is no environment 'beam/one'"):
        make("beam/one")
