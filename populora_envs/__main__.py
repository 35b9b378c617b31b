"""``python -m populora_envs`` is ``populora-envs``."""

import sys

from populora_envs.cli import main

sys.exit(main())
