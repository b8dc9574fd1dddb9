"""Basic SVG shapes as strings, for drawing boards."""

from html import escape


def document(width: int, height: int, shapes: list[str]) -> str:
    """Return a scalable SVG document with `shapes`.

    The background is white, so that it is legible on any page.
    """
    body = "\n".join([rect(0, 0, width, height, "#ffffff"), *shapes])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif">\n{body}\n</svg>\n'
    )


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none", rx: float = 0) -> str:
    """Return a filled rectangle with corner radius `rx`."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} rx="{rx:g}" fill="{fill}" stroke="{stroke}"/>'


def circle(x: float, y: float, radius: float, fill: str, stroke: str = "none", width: float = 1) -> str:
    """Return a circle around (x, y)."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}" stroke="{stroke}" stroke-width="{width:g}"/>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1) -> str:
    """Return a straight line with round ends."""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" stroke-width="{width:g}" '
        f'stroke-linecap="round"/>'
    )


def text(x: float, y: float, words: str, size: float = 16, fill: str = "#222222", anchor: str = "middle") -> str:
    """Return text with its baseline at y; `anchor` is start, middle or end."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}">{escape(words)}</text>'
