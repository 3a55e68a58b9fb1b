"""An oracle of the ledger: docs/ledger.md computed a second time, sharing nothing with the pipelines."""
