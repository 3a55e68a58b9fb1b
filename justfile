# Daily commands; `just` lists them. Install: cargo install just, or apt-get install just.

# Lists the commands.
default:
    @just --list

# Replays a real trace and shows the ledger growing.
demo:
    cargo run --locked -- up --demo

# Format, lints, and the unit tests of the crates that differ from main.
quick:
    tests/run.sh --quick

# Every check, as CI runs them.
test:
    bash tests/run.sh

# One suite: `just suite tidegate-lake/lake`.
suite NAME:
    tests/suites/run.py --suite {{ NAME }}

# The golden cases of pipelines/, in two of the five ways.
pipelines:
    cargo run --locked -- pipeline test --quick pipelines/tests

# Writes the generated pages and drawings anew.
bless:
    TIDEGATE_BLESS=1 cargo test --locked --workspace --test cli -- reference:: architecture::

# Every proof in its long form; hours.
long:
    TIDEGATE_LONG=1 bash tests/run.sh

# The documentation as a site, in target/site.
site:
    docs/site.py

# The API documentation of our crates.
api:
    cargo doc --locked --workspace --no-deps --document-private-items
