"""The blocks of the page about layers run, one after the other, as a reader would run them."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "layers.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_python_of_the_page_about_layers_runs(capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(code, names)
    printed = capsys.readouterr().out
    assert "'0': (8, 16, 4), '2': (8, 32, 4), '3': (8, 32, 1), '5': (8, 6, 4)" in printed
    assert "{'0': 2, '2': 4, '5': 4}" in printed
    assert "torch.Size([3, 1, 8]) torch.Size([1, 3, 8])" in printed
    assert len(names["texts"]) == 2
