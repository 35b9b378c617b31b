"""A check for whoever writes an adapter: does it keep the contract of `populora_envs.adapter`?"""

from populora_envs.testing.check import check_adapter
from populora_envs.testing.report import AdapterReport

__all__ = ["AdapterReport", "check_adapter"]
