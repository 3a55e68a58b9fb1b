#!/usr/bin/env python3
"""Renders the documentation as a site with mdBook.

    docs/site.py [--out FOLDER] [--check]

Stages every page of docs/SUMMARY.md, and every file that a page links to, at its place in the
repository, so that links work as they do in the repository; then runs `mdbook build`. Diagrams are
drawn by Mermaid. Decisions stand in the site as docs/adr/README.md lists them. Without mdbook or Mermaid it installs them with cargo and npm, below
~/.cache/tidegate/tools. `--check` stages only: it fails on a page that SUMMARY.md does not list, and on a
link to nothing. Needs Python 3.11.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidegate" / "tools"
MDBOOK = "0.5.4"
MERMAID = "12.3.0"
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
DRAW = """\
for (const code of document.querySelectorAll("code.language-mermaid")) {
    const drawing = document.createElement("pre");
    drawing.className = "mermaid";
    drawing.textContent = code.textContent;
    code.parentElement.replaceWith(drawing);
}
mermaid.initialize({ startOnLoad: false, securityLevel: "strict" });
mermaid.run();
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "site", help="folder of the site")
    parser.add_argument("--check", action="store_true", help="only look for missing pages and broken links")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-site-") as folder:
        problems = stage(Path(folder) / "src")
        if problems:
            print("\n".join(problems))
            return 1
        if not args.check:
            build(Path(folder), args.out.resolve())
            print(f"{args.out}/README.html")
    return 0


def stage(source: Path) -> list[str]:
    """Copies the pages and what they link to; returns what is wrong with them."""
    summary = with_decisions((ROOT / "docs" / "SUMMARY.md").read_text())
    listed = [path for path in linked(Path("docs/SUMMARY.md"), summary) if path.suffix == ".md"]
    pages = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    problems = [f"neither docs/SUMMARY.md nor docs/adr/README.md lists {page}" for page in sorted(pages) if page not in listed and page.name != "SUMMARY.md"]
    for page in listed:
        if not (ROOT / page).is_file():
            problems.append(f"docs/SUMMARY.md lists {page}, which does not exist")
            continue
        text = (ROOT / page).read_text()
        put(source, page)
        for target in linked(page, text):
            if not (ROOT / target).exists():
                problems.append(f"{page} links to {target}, which does not exist")
            elif target.suffix != ".md" or target not in listed:
                put(source, target)
    rooted = LINK.sub(lambda link: f"]({os.path.normpath(Path('docs') / link[1])})", summary)
    source.mkdir(parents=True, exist_ok=True)
    (source / "SUMMARY.md").write_text(rooted)
    return problems


def with_decisions(summary: str) -> str:
    """Puts the decisions that docs/adr/README.md links to below their line."""
    decisions = re.findall(r"\[([^]]+)\]\((\d{4}-[^)]+)\)", (ROOT / "docs" / "adr" / "README.md").read_text())
    lines = "".join(f"    - [{title}](adr/{file})\n" for title, file in decisions)
    return summary.replace("- [Decisions](adr/README.md)\n", f"- [Decisions](adr/README.md)\n{lines}")


def linked(page: Path, text: str) -> list[Path]:
    """Files that a page links to, from the root of the repository."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    targets = [link[1] for link in LINK.finditer(prose) if "://" not in link[1] and not link[1].startswith("mailto:")]
    return [Path(os.path.normpath(page.parent / target)) for target in targets]


def put(source: Path, path: Path) -> None:
    """Copies a file; of a folder nothing, since a site cannot list it."""
    if (ROOT / path).is_file():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, source / path)


def build(folder: Path, out: Path) -> None:
    (folder / "mermaid.min.js").write_bytes(mermaid())
    (folder / "draw.js").write_text(DRAW)
    shutil.copyfile(ROOT / "docs" / "book.toml", folder / "book.toml")
    subprocess.run([mdbook(), "build", folder, "--dest-dir", out], check=True)


def mdbook() -> str:
    """The program, installed where it is missing."""
    found = shutil.which("mdbook", path=f"{TOOLS}/bin:{os.environ['PATH']}")
    if not found:
        subprocess.run(["cargo", "install", "--locked", "--root", TOOLS, f"mdbook@{MDBOOK}"], check=True)
        found = f"{TOOLS}/bin/mdbook"
    return found


def mermaid() -> bytes:
    """Mermaid's browser bundle, from its npm package."""
    kept = TOOLS / f"mermaid-{MERMAID}.min.js"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            packed = subprocess.run(
                ["npm", "pack", "--json", f"mermaid@{MERMAID}"], cwd=folder, check=True, capture_output=True, text=True
            )
            archive = Path(folder) / json.loads(packed.stdout)[0]["filename"]
            with tarfile.open(archive) as files:
                bundle = files.extractfile("package/dist/mermaid.min.js").read()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(bundle)
    return kept.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
