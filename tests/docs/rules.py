"""What is special about single commands of README.md and the guides. A command that no rule fits is
run as it stands and must succeed.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from commands import Command


class How(Enum):
    RUN = auto()
    """To its end, which must be a success."""
    SKIP = auto()
    """It cannot run here; `why` says it."""
    DEMO = auto()
    """Goes on until told to end; it is, once its site has come to the present."""
    STAYS = auto()
    """Goes on while the rest of its section runs. What follows waits until it answers on its port.
    """
    UNTIL_ROWS = auto()
    """Asked again until the answer has rows, since what tells them has only begun."""


@dataclass(frozen=True)
class Rule:
    pattern: str
    how: How = How.RUN
    why: str = ""
    """Why it is skipped."""
    before: str = ""
    """A command that the text takes for done; whether it succeeds shows in the command itself."""
    data: str = ""
    """Data folder of its own, instead of the one that the first command made."""
    long: bool = False
    """Only with TIDEGATE_LONG=1: it takes minutes in an unoptimized build."""

    def fits(self, command: Command) -> bool:
        return re.search(self.pattern, f"{command.page}: {command.section}\n{command.text}") is not None


KAFKA = "it needs a Kafka cluster"
SLURM = "it needs a Slurm cluster"
KEYS = "it needs the keys of people"
MACHINE = "it would change this machine"
PHILLY = "tidegate up --demo philly --speed max --exit-when-done --listen 127.0.0.1:0"

# The first that fits holds. A pattern is searched in `PAGE: SECTION`, a line break, and the command.
RULES = [
    Rule(r"^README.md: Try it\ncargo run ", How.DEMO),
    Rule(r"^README.md: Try it\nbash tests/run.sh", How.SKIP, "it is what runs this"),
    Rule(r"\n(sudo |apt|editor |systemctl |journalctl |install -|ssh-keygen )", How.SKIP, MACHINE),
    Rule(r"^docs/guide/kafka.md|kafka://", How.SKIP, KAFKA),
    Rule(r"^docs/guide/slurm.md", How.SKIP, SLURM),
    Rule(r"\nsacct ", How.SKIP, SLURM),
    Rule(r"^docs/guide/autopilot.md: Save[^\n]*\n(export|sbatch|srun|import tidegate)", How.SKIP, SLURM),
    Rule(r"/run/tidegate/agent.sock", How.SKIP, "no agent is installed here"),
    Rule(r"FROM dead_letters", before="tidegate import jobs own.csv --map jobs_csv", data="history"),
    Rule(r"^docs/guide/demo.md[^\n]*\ncargo run ", How.SKIP, "README's first command does the same"),
    Rule(r"^docs/guide/sql.md[^\n]*\ntidegate sql ", before=PHILLY, data="philly"),
    Rule(r"\ntidegate import samples --prometheus", How.SKIP, "tests/prometheus does, from real servers"),
    Rule(r"\nwhile date ", How.SKIP, "it reads a dcgm-exporter for as long as it is let"),
    Rule(r"\ntidegate (import|explain job) ", data="history"),
    Rule(r"\ntidegate pipeline backfill", data="history"),
    Rule(r"\ntidegate(-node)? (up|agent) ", How.STAYS),
    Rule(r"^docs/guide/agents.md[^\n]*\ntidegate sql ", How.UNTIL_ROWS),
    Rule(r"\ntidegate-node doctor", How.SKIP, "it judges this machine, which need not be a node"),
    Rule(r"\ntidegate autopilot run ", How.SKIP, SLURM),
    Rule(r"\ntidegate (autopilot shadow|plan diff --shadow)", How.SKIP, "no shadow plans in the demo"),
    Rule(r"\ntidegate autopilot (approve|reject) ", How.SKIP, "nothing waits for approval in the demo's log"),
    Rule(r"/v1/autopilot", How.SKIP, "no autopilot runs in the demo's server"),
    Rule(r"\nfrom adbc_driver_flightsql ", How.SKIP, "tests/clients does it, with the driver"),
    Rule(r"\nimport duckdb", How.SKIP, "tests/engines does it, with the engines"),
    Rule(r"\ntidegate log release ", How.SKIP, "every reader of the demo's log is in use"),
    Rule(r"--signers allowed_signers|\nmv site.toml.statement|\ntidegate autopilot resume --key", How.SKIP, KEYS),
    Rule(r"\ntidegate backtest --from ", How.SKIP, "it needs a site's log of that month"),
    Rule(r"\ntidegate autopilot doctor ", How.SKIP, SLURM),
    Rule(r"\ntidegate autopilot rehearse ", How.SKIP, "crates/tidegate/tests/cli/history.rs does, on a week of Philly"),
    Rule(r"\ntidegate backtest --trace traces/", How.SKIP, "it needs the public traces"),
    Rule(r"\ntidegate (backtest|sim soak) ", long=True),
]
RUN = Rule("")


def rule(command: Command) -> Rule:
    return next((rule for rule in RULES if rule.fits(command)), RUN)
