"""Searches: how one generation becomes the next, each by name in one file."""

from populora_envs.search.ars import AugmentedRandomSearch
from populora_envs.search.base import Search, register_search, searches
from populora_envs.search.choose import check_search, chosen, make_search
from populora_envs.search.clonal import ClonalSelection
from populora_envs.search.cma import CovarianceMatrixAdaptation
from populora_envs.search.es import EvolutionStrategy
from populora_envs.search.ga import GeneticAlgorithm
from populora_envs.search.genome import Genome
from populora_envs.search.islands import IslandAlgorithm
from populora_envs.search.map_elites import MapElites
from populora_envs.search.openai_es import OpenAIES
from populora_envs.search.pgpe import PGPE
from populora_envs.search.random_search import RandomSearch
from populora_envs.search.sep_cma import SeparableCMA
from populora_envs.search.snes import SeparableNES
from populora_envs.search.vector import VectorSearch

__all__ = [
    "PGPE",
    "AugmentedRandomSearch",
    "ClonalSelection",
    "CovarianceMatrixAdaptation",
    "EvolutionStrategy",
    "GeneticAlgorithm",
    "Genome",
    "IslandAlgorithm",
    "MapElites",
    "OpenAIES",
    "RandomSearch",
    "Search",
    "SeparableCMA",
    "SeparableNES",
    "VectorSearch",
    "check_search",
    "chosen",
    "make_search",
    "register_search",
    "searches",
]
