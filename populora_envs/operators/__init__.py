"""Operators of the genetic algorithm, each by name: selection, parents, crossover, mutation.

Every operator is batched over individuals and draws from the generator it is given.
"""

from populora_envs.operators import subspace as subspace
from populora_envs.operators.crossover import crossovers, register_crossover
from populora_envs.operators.migration import migrations, register_migration
from populora_envs.operators.mutation import mutations, register_mutation
from populora_envs.operators.parents import parent_selections, register_parent_selection
from populora_envs.operators.selection import register_selection, selections

__all__ = [
    "crossovers",
    "migrations",
    "mutations",
    "parent_selections",
    "register_crossover",
    "register_migration",
    "register_mutation",
    "register_parent_selection",
    "register_selection",
    "selections",
]
