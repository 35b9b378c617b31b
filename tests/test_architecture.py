"""The house keeps its floors: who imports whom, how long files are, what must not be in them."""

import ast
import graphlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "populora_envs"
ADAPTERS = ROOT / "adapters" / "populora_adapters"

# From the top of the house to its ground. A module imports only from floors below its own.
FLOORS = (
    {"__init__", "__main__"},
    {"cli"},
    {"evolution"},
    {"report"},
    {"bench", "catalogue", "description", "grid", "video"},
    {"interactor", "rerun"},
    {"environments", "evolve"},
    {"camera", "champion", "checkpoint", "evaluation", "judges", "observers", "run_folder"},
    {"players", "sharing"},
    {"workers"},
    {"worker"},
    {"stage"},
    {"parts"},
    {"generation", "rollout", "search", "testing"},
    {"teams"},
    {"diversity", "policy", "population", "slots", "sources"},
    {"actor", "page", "scenes"},
    {"schemes", "stored"},
    {"islands"},
    {"action_map", "actions", "compiled", "genetics", "individuals", "trainable"},
    {"action_head", "action_noise", "box_map", "operators", "routing"},
    {"layers"},
    {"adapted"},
    {"fused"},
    {"layer_plan"},
    {"plans"},
    {"archive", "hall_of_fame", "invariance"},
    {"calls"},
    {"policy_files"},
    {"lockstep"},
    {"ranks"},
    {"meeting"},
    {"history", "loggers", "population_table"},
    {
        "action_arrays",
        "batching",
        "contender",
        "direct_head",
        "distributed",
        "export",
        "files",
        "fitness",
        "normalizer",
        "registry",
        "simulators",
        "targets",
    },
    {"family_tree", "mixed"},
    {"plots", "stacks"},
    {
        "adapter",
        "callbacks",
        "extras",
        "behaviour",
        "elite",
        "heatmap",
        "jobs",
        "lineage",
        "layer_kinds",
        "low_rank",
        "moved",
        "peft_files",
        "processes",
        "progress",
        "rescale",
        "seating",
        "seeds",
        "settings",
        "shared",
        "slot_actions",
        "spaces",
    },
)
MAY_IMPORT = {
    module: set().union(*FLOORS[number + 1 :])
    for number, floor in enumerate(FLOORS)
    for module in floor
}

CORE_LIBRARIES = {"cloudpickle", "gymnasium", "numpy", "safetensors", "torch", "tqdm", "tyro"}
OPTIONAL = {
    "export": {"onnxruntime", "onnxscript"},
    "history": {"pandas"},
    "loggers": {"trackio", "wandb"},
    "family_tree": {"matplotlib"},
    "plots": {"matplotlib"},
    "search.cma": {"cma"},
    "camera": {"PIL", "imageio", "imageio_ffmpeg"},
    "heatmap": {"matplotlib"},
}
"""By the name of a module, the packages that it imports where they are there."""
ADAPTER_CORE = {"adapter", "registry", "slot_actions", "spaces", "stacks"}
ADAPTER_LIBRARIES = {"gymnasium", "numpy", "torch"}
SIMULATORS = {
    "atari": {"ale_py"},
    "brax": {"brax"},
    "dm_env": {"dm_control"},
    "envpool": {"envpool"},
    "functional": {"jax"},
    "gymnax": {"gymnax"},
    "maniskill": {"mani_skill"},
    "minigrid": {"minigrid"},
    "pettingzoo": {"pettingzoo"},
    "pufferlib": {"pufferlib"},
    "pybullet": {"pybullet_envs_gymnasium"},
}
"""By the name of an adapter's file, the packages of its simulator."""

LONGEST_FILE = 350


def sources(*folders):
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path):
    """The dotted name inside its package, of an `__init__` that of its folder."""
    folder = CORE if CORE in path.parents else ADAPTERS
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def _for_types_alone(node):
    test = getattr(node, "test", None)
    return isinstance(node, ast.If) and getattr(test, "id", "") == "TYPE_CHECKING"


def imports(path):
    """Everything that a file imports when it runs, as (module, names), also inside functions."""
    waiting, found = [tree_of(path)], []
    while waiting:
        node = waiting.pop()
        if _for_types_alone(node):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            found.append((node.module, tuple(alias.name for alias in node.names)))
        waiting += ast.iter_child_nodes(node)
    return found


def imported_modules(path, package):
    """The modules of `package` that a file imports, dotted inside it."""
    found = set()
    for module, names in imports(path):
        if module == package:
            found |= set(names)
        elif module.startswith(f"{package}."):
            found.add(module.removeprefix(f"{package}."))
    return found


def roots(path):
    """The top-level packages that a file imports, the standard library left out."""
    return {module.partition(".")[0] for module, _ in imports(path)} - set(sys.stdlib_module_names)


def test_every_module_has_its_floor():
    modules = {name_of(path).partition(".")[0] for path in sources(CORE)}
    assert modules == set(MAY_IMPORT), "give a new module a floor in FLOORS"
    assert sum(map(len, FLOORS)) == len(MAY_IMPORT), "a module stands on one floor"


@pytest.mark.parametrize("path", sources(CORE), ids=name_of)
def test_modules_import_only_downward(path):
    module = name_of(path).partition(".")[0]
    imported = {name.partition(".")[0] for name in imported_modules(path, "populora_envs")}
    upward = imported - MAY_IMPORT[module] - {module}
    assert not upward, f"{module} imports {sorted(upward)}, which does not lie below it"


def test_no_import_goes_in_a_circle():
    for folder, package in ((CORE, "populora_envs"), (ADAPTERS, "populora_adapters")):
        graph = {
            name_of(path): imported_modules(path, package) - {name_of(path)}
            for path in sources(folder)
        }
        graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("path", sources(CORE), ids=name_of)
def test_core_imports_no_simulator_but_the_spaces_of_gymnasium(path):
    optional = OPTIONAL.get(name_of(path), set())
    assert roots(path) <= CORE_LIBRARIES | {"populora_envs"} | optional
    for module, names in imports(path):
        if module.partition(".")[0] == "gymnasium":
            assert module == "gymnasium.spaces" or set(names) <= {"spaces", "Space"}


@pytest.mark.parametrize("path", sources(ADAPTERS), ids=name_of)
def test_adapters_know_the_contract_their_simulator_and_each_other(path):
    own = SIMULATORS.get(path.stem, set())
    allowed = ADAPTER_LIBRARIES | own | {"populora_envs", "populora_adapters"}
    assert roots(path) <= allowed
    assert imported_modules(path, "populora_envs") <= ADAPTER_CORE


@pytest.mark.parametrize("path", sources(CORE, ADAPTERS, ROOT / "examples"), ids=lambda p: p.stem)
def test_no_file_is_too_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


def _public(node, prefix=""):
    """Public functions, classes and methods below a node; a property's setter belongs to it."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, kinds) or child.name.startswith("_"):
            continue
        if any(getattr(d, "attr", "") == "setter" for d in child.decorator_list):
            continue
        yield f"{prefix}{child.name}", child
        if isinstance(child, ast.ClassDef):
            yield from _public(child, f"{child.name}.")


@pytest.mark.parametrize("path", sources(CORE, ADAPTERS), ids=name_of)
def test_everything_public_is_documented(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    bare = [name for name, node in _public(tree) if not ast.get_docstring(node)]
    assert not bare


def texts():
    kinds = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cfg", ".sh"}
    folders = ("populora_envs", "adapters", "tests", "examples", ".ci")
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix in kinds or path.parent.name == ".ci"]


def test_no_path_of_a_machine_is_written_down():
    homes = "|".join(("home", "root", "work", "Users", "opt"))
    machine_path = re.compile(rf"(?<![\w.\-/*])/(?:{homes})/\w")
    for path in texts():
        found = machine_path.findall(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found}"
