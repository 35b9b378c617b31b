"""The code on the page about archives, islands and lineage runs, block after block."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "archives.md"


def test_the_page_runs_from_top_to_bottom(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert "kinds," in capsys.readouterr().out
    assert len(names["tables"]) == 3
