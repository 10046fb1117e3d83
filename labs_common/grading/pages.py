"""The look that feedback pages and the class report share: one file, no script, nothing from elsewhere."""

from __future__ import annotations

from html import escape

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1c1c1c; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.lead { color: #595959; margin: 0 0 1.25rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #ddd; }
th { font-weight: 600; background: #f5f5f5; } td.number, th.number { text-align: right; white-space: nowrap; }
tr.sum td { font-weight: 600; border-top: 2px solid #888; }
.mark { white-space: nowrap; } .yes { color: #00664b; } .no { color: #a33c00; }
ul { margin: .25rem 0 1rem; padding-left: 1.25rem; } li { overflow-wrap: anywhere; margin: .15rem 0; }
code { font-size: .92em; overflow-wrap: anywhere; } img { max-width: 100%; height: auto; }
figure { margin: 1rem 0; } figcaption { color: #595959; font-size: .9em; }
.note { background: #fff8e6; border-left: 4px solid #e69f00; padding: .5rem .8rem; margin: .75rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; padding: 0; list-style: none; }
.facts li { border: 1px solid #ddd; border-radius: 6px; padding: .5rem .9rem; margin: 0; }
.facts b { display: block; font-size: 1.3rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font-size: .9em; }
"""


def page(title: str, body: str) -> str:
    """A whole HTML page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def points(value: float) -> str:
    """Points without needless zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(value: object) -> str:
    """Text of anybody's, safe inside an element; line breaks stay."""
    return escape(str(value)).replace("\n", "<br>")


def listed(items: list[str]) -> str:
    """A list of texts; nothing where there are none."""
    return "<ul>" + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>" if items else ""
