"""What the site has beside the files of docs/: README, CONTRIBUTING and CHANGELOG as pages, and a list of decisions.

mkdocs calls the functions by their names (hooks of mkdocs.yml).
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# Page of the site -> file of the repository.
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
}

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def as_page(text: str) -> str:
    """A file of the repository's root with its links as a page of docs/ has them; what is no page is no link."""

    def renewed(match: re.Match[str]) -> str:
        words, link = match.groups()
        if link.startswith(("http:", "https:", "#")):
            return match[0]
        for page, file in PAGES.items():
            if link == file:
                return f"[{words}]({page})"
        if link == "docs/decisions/":
            return f"[{words}](decisions/index.md)"
        if link.startswith("docs/"):
            return f"[{words}]({link.removeprefix('docs/')})"
        return words if (ROOT / link).exists() else match[0]

    return LINK.sub(renewed, text)


def list_of_decisions(folder: Path) -> str:
    """A line for each decision, by its number."""
    lines = [
        "# Decisions",
        "",
        "Why things are as they are, in the order in which they were decided.",
        "",
    ]
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- {path.name[:4]} [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are no files of docs/."""
    from mkdocs.structure.files import File

    for page, file in PAGES.items():
        files.append(File.generated(config, page, content=as_page((ROOT / file).read_text())))
    decisions = list_of_decisions(Path(config["docs_dir"]) / "decisions")
    files.append(File.generated(config, "decisions/index.md", content=decisions))
    return files
