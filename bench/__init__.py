"""The harness: YAML suite -> cases -> workers -> measurements -> tables, plots, report."""

__version__ = "0.1.0"
