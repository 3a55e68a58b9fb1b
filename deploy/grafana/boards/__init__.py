"""The dashboards: one module each, with its questions in SQL. parts.py has what they are made of."""
