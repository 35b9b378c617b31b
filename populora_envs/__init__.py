"""Evolve populations of low-rank policies in any environment, one routed forward per timestep."""

from populora_envs.actions import ActionHead, make_action, register_head
from populora_envs.archive import CVTArchive, GridArchive
from populora_envs.behaviour import Episode
from populora_envs.callbacks import Callback
from populora_envs.distributed import is_main_rank
from populora_envs.evolution import evolve_with_env
from populora_envs.generation import generate
from populora_envs.hall_of_fame import HallOfFame
from populora_envs.history import History
from populora_envs.interactor import EnvInteractor, PolicyScore, interact_with_env
from populora_envs.lineage import Lineage
from populora_envs.operators import (
    register_crossover,
    register_migration,
    register_mutation,
    register_parent_selection,
    register_selection,
)
from populora_envs.policy import Policy
from populora_envs.population import Population
from populora_envs.ranks import broadcast, sync
from populora_envs.rescale import rescale_from_range_to_range
from populora_envs.search import Search, make_search, register_search
from populora_envs.simulators import register_adapter
from populora_envs.video import record_video

__all__ = [
    "ActionHead",
    "CVTArchive",
    "Callback",
    "EnvInteractor",
    "Episode",
    "GridArchive",
    "HallOfFame",
    "History",
    "Lineage",
    "Policy",
    "PolicyScore",
    "Population",
    "Search",
    "broadcast",
    "evolve_with_env",
    "generate",
    "interact_with_env",
    "is_main_rank",
    "make_action",
    "make_search",
    "record_video",
    "register_adapter",
    "register_crossover",
    "register_head",
    "register_migration",
    "register_mutation",
    "register_parent_selection",
    "register_search",
    "register_selection",
    "rescale_from_range_to_range",
    "sync",
]
