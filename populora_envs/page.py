"""``report.html``: one page that shows a run and needs no other file."""

from __future__ import annotations

import base64
import html
import json
import math
from typing import TYPE_CHECKING, Any

from populora_envs.files import write_text
from populora_envs.progress import counted, short

if TYPE_CHECKING:
    from pathlib import Path

    from populora_envs.run_folder import RunFolder

PICTURES = {
    "fitness": "Returns over the run",
    "population": "Every individual",
    "diversity": "How far apart the individuals are",
    "lineage": "Who descends from whom",
}
"""Files in ``plots`` and what they show, in the order of the page."""

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.4rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.score { font-size: 2.2rem; font-weight: 600; margin: 0; }
.note { color: #777; margin: 0; }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; }
img, video { background: #fff; border: 1px solid var(--line); border-radius: 6px; max-width: 100%; width: 100%; }
video { max-width: 32rem; }
figcaption { color: #777; font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
td, th { border-bottom: 1px solid var(--line); overflow-wrap: anywhere; padding: .2rem .8rem .2rem 0; text-align: left; }
th { white-space: nowrap; }
"""


def write_page(folder: RunFolder) -> Path:
    """Write a run's page from what its folder holds; return where it is.

    Raises:
        ValueError: where the run has no generation yet.
    """
    history = folder.history()
    if not history:
        message = f"{folder.path} has no generation yet: there is nothing to report"
        raise ValueError(message)
    config = folder.config()
    title = str(config.get("env") or folder.path.resolve().name)
    parts = [
        f"<h1>{_text(title)}</h1>",
        _score(history[-1]),
        *_film(folder),
        *_pictures(folder),
        _table("Run", _facts(history)),
        _table("Settings", _settings(config)),
    ]
    write_text(folder.report, _PAGE.format(title=_text(title), style=_STYLE, body="\n".join(parts)))
    return folder.report


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _text(value: Any) -> str:
    return html.escape(str(value))


def _score(last: dict[str, Any]) -> str:
    mean, error = last["champion_mean"], last["champion_se"]
    spread = f" &plusmn; {short(error)}" if math.isfinite(error) else ""
    return (
        f'<p class="score" id="score">{short(mean)}{spread}</p>\n'
        '<p class="note">mean return of the returned policy and its standard error over '
        f"{last['champion_episodes']} fresh episodes</p>"
    )


def _film(folder: RunFolder) -> list[str]:
    if not folder.video.exists():
        return []
    source = _inlined(folder.video, "video/mp4")
    return [f'<h2>The policy</h2>\n<video controls loop muted playsinline src="{source}"></video>']


def _pictures(folder: RunFolder) -> list[str]:
    shown = [(folder.plots / f"{name}.png", words) for name, words in PICTURES.items()]
    figures = [
        f'<figure><img alt="{words}" src="{_inlined(path, "image/png")}">'
        f"<figcaption>{words}</figcaption></figure>"
        for path, words in shown
        if path.exists()
    ]
    return [f'<h2>Plots</h2>\n<div class="grid">{"".join(figures)}</div>'] if figures else []


def _inlined(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _facts(history: Any) -> dict[str, Any]:
    last = history[-1]
    facts = {
        "generations": len(history),
        "environment steps": counted(last["env_steps"]),
        "of these, in looks at champions": counted(last["env_steps_validation"]),
        "best return of an individual": short(max(entry["best_fitness"] for entry in history)),
    }
    base = history[0].get("base_fitness")
    return facts if base is None else {"the unchanged base": short(base), **facts}


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that say something, nested ones as dotted names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": told for inner, told in value.items()}
        elif value is not None:
            flat[name] = value
    return {name: v if isinstance(v, str) else json.dumps(v) for name, v in flat.items()}


def _table(title: str, rows: dict[str, Any]) -> str:
    lines = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows.items()
    )
    return f'<h2>{title}</h2>\n<div class="scroll"><table>{lines}</table></div>'
