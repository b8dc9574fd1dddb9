"""mkdocs hook that replaces links to files outside docs/ by plain text."""

import posixpath
import re

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, page, **_) -> str:
    """Return the page without links that leave the documentation."""
    folder = posixpath.dirname(page.file.src_uri)

    def kept(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(folder, match.group(2).partition("#")[0]))
        return match.group(1) if target.startswith("../") else match.group(0)

    return LINK.sub(kept, markdown)
