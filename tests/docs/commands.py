"""What README.md and the guides tell a reader to type, section by section, and what they show."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Command:
    """One command as it stands in a page; `shown` is the output printed below it, if any."""

    page: str
    section: str
    line: int
    text: str
    language: str = "sh"
    shown: str = ""

    def __str__(self) -> str:
        first = " ".join(self.text.split())
        return first if len(first) <= 100 else first[:97] + "..."


@dataclass
class Block:
    """A fenced block: its language, its lines without the fence's indentation, and where it begins.
    """

    page: str
    section: str
    language: str
    line: int
    lines: list[str] = field(default_factory=list)


def pages() -> list[Path]:
    """README.md first, since its first command makes what the others ask; then the guides."""
    return [Path("README.md"), *sorted(Path("docs/guide").glob("*.md"))]


def blocks(file: Path) -> list[Block]:
    """All fenced blocks of a Markdown file, each under the heading it stands below."""
    found, section, inside, indent = [], "", False, 0
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        fence = re.match(r"^( *)```(\w*)$", line)
        if fence and not inside:
            inside, indent = True, len(fence[1])
            found.append(Block(str(file), section, fence[2], number + 1))
        elif fence:
            inside = False
        elif inside:
            found[-1].lines.append(line[indent:])
        elif line.startswith("## "):
            section = line[3:].strip()
    return found


def commands(file: Path) -> list[Command]:
    """The commands of a Markdown file in their order, each with the output that follows it."""
    return read(file)[0]


def pictures(file: Path) -> list[Block]:
    """Blocks that show what the demo draws: those without commands that follow none."""
    return read(file)[1]


def read(file: Path) -> tuple[list[Command], list[Block]]:
    """A block without a language has commands if its first line is one: after `$ `, or of tidegate
    itself. One that has none and follows commands is what the last of them prints.
    """
    found: list[Command] = []
    drawn: list[Block] = []
    follows = False
    for block in blocks(file):
        is_session = any(line.startswith("$ ") for line in block.lines)
        is_plain = block.language == "" and block.lines[0].startswith("tidegate ")
        if block.language == "python":
            found.append(Command(block.page, block.section, block.line, "\n".join(block.lines), "python"))
        elif block.language == "sh" or is_session or is_plain:
            found += typed(block, is_session)
        elif block.language == "" and follows and found[-1].section == block.section:
            found[-1].shown = "\n".join(block.lines)
        elif block.language == "":
            drawn.append(block)
        follows = block.language == "sh"
    return found, drawn


def typed(block: Block, is_session: bool) -> list[Command]:
    """The commands of one block; a command goes on where a quote is open or a line ends in a
    backslash or a pipe.
    """
    found: list[Command] = []
    open_text = ""
    for number, line in enumerate(block.lines, start=block.line):
        if open_text:
            open_text += "\n" + line
        elif is_session and not line.startswith("$ "):
            found[-1].shown += line + "\n"
            continue
        elif line.strip() == "" or line.lstrip().startswith("#"):
            continue
        else:
            begun, open_text = number, line.removeprefix("$ ")
        if is_complete(open_text):
            found.append(Command(block.page, block.section, begun, open_text))
            open_text = ""
    if open_text:
        raise ValueError(f"{block.page}: the command of line {begun} does not end: {open_text}")
    return found


def is_complete(text: str) -> bool:
    if text.endswith(("\\", "|")):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        # A quote is open.
        return False
    return True
