"""The frame and style sheet of HTML reports. Colour never stands alone: each cell and badge has a word too."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ddpctl.render.clean import clean

CSS = """
:root {
  --paper: #ffffff; --card: #f6f7f9; --ink: #1b1f24; --soft: #5b6470; --line: #d9dde3;
  --error: #b3261e; --warning: #8a5a00; --info: #1f5fa8; --unknown: #6b4a9e; --ok: #23713b;
  --error-bg: #fbe4e2; --warning-bg: #fdf0d3; --info-bg: #e3eefb; --unknown-bg: #efe7fa; --ok-bg: #e2f3e6;
  --h5: #cfe3f7; --h4: #a5c9ee; --h3: #86b3e4; --h2: #3f7cc2; --h1: #1d4f8f;
  --h-dark: #0f2440; --h-light: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171c; --card: #1c2128; --ink: #e8eaed; --soft: #a0a8b3; --line: #343b45;
    --error: #ff9a92; --warning: #f2c063; --info: #8fc0ff; --unknown: #cbb2f5; --ok: #82d39a;
    --error-bg: #47201d; --warning-bg: #423310; --info-bg: #1b3150; --unknown-bg: #32264a; --ok-bg: #183823;
    --h5: #1c3a5c; --h4: #285382; --h3: #3b74b0; --h2: #6ba3dc; --h1: #b5d6f7;
    --h-dark: #e8eaed; --h-light: #0f1720;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { margin: 0 0 .25rem; font-size: 2rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.15rem; }
h3 { margin: 0; font-size: 1rem; font-weight: 600; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { margin: .6rem 0 0; padding: .6rem .75rem; background: var(--paper); border: 1px solid var(--line);
  border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
.what { margin: 0; color: var(--soft); }
.soft, .where { color: var(--soft); font-weight: 400; }
.badge { display: inline-block; padding: .05rem .55rem; border-radius: 999px; font-size: .85rem; font-weight: 600; }
.error.badge { background: var(--error-bg); color: var(--error); }
.warning.badge { background: var(--warning-bg); color: var(--warning); }
.info.badge { background: var(--info-bg); color: var(--info); }
.unknown.badge { background: var(--unknown-bg); color: var(--unknown); }
.ok.badge { background: var(--ok-bg); color: var(--ok); }
article { margin: .75rem 0; padding: .85rem 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
.hosts th, .hosts td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; }
.hosts thead th { color: var(--soft); font-weight: 500; }
.hosts tbody th { font-weight: 600; white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
.cell.error { background: var(--error-bg); color: var(--error); font-weight: 600; }
.cell.warning { background: var(--warning-bg); color: var(--warning); font-weight: 600; }
.cell.info { color: var(--info); }
.cell.unknown { color: var(--unknown); }
.cell.ok { color: var(--ok); }
.cell.none { color: var(--soft); }
.heat { font-size: .8rem; font-variant-numeric: tabular-nums; }
.heat td { min-width: 3.6rem; height: 2rem; padding: 0 .35rem; text-align: center; border: 2px solid var(--paper); }
.heat th { padding: .2rem .5rem; font-weight: 500; text-align: right; white-space: nowrap; }
.heat thead th { text-align: center; }
.heat.small { font-size: .7rem; }
.heat.small td { min-width: 1rem; height: 1rem; padding: 0; border-width: 1px; }
.heat.small th { padding: 0 .25rem; }
.heat.small thead th span { writing-mode: vertical-rl; }
.h5 { background: var(--h5); color: var(--h-dark); }
.h4 { background: var(--h4); color: var(--h-dark); }
.h3 { background: var(--h3); color: var(--h-dark); }
.h2 { background: var(--h2); color: var(--h-light); }
.h1 { background: var(--h1); color: var(--h-light); }
.heat .broken, .legend .broken { background: var(--error-bg); color: var(--error); font-weight: 700;
  outline: 2px solid var(--error); outline-offset: -3px; }
.heat .self { background: transparent; }
.heat .untried { background: var(--card); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: .5rem 0 1rem; padding: 0; list-style: none;
  font-size: .85rem; color: var(--soft); }
.legend i { display: inline-block; width: 1rem; height: 1rem; margin-right: .4rem; border-radius: 3px;
  vertical-align: -2px; }
figure { margin: .75rem 0; max-width: 48rem; }
figure svg { width: 100%; height: auto; }
details { margin: .5rem 0; }
summary { cursor: pointer; }
"""


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """Return a whole document around these parts, which are markup; the title is escaped here. ``style``: more CSS."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(clean(title))}</title>\n<style>{CSS}{style}</style>\n</head>\n<body>\n<main>\n"
        + clean("\n".join(parts))
        + "\n</main>\n</body>\n</html>\n"
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of plain texts, which are escaped here."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="hosts"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
