"""`python -m bench` is `layerbench`, also from a checkout that was not installed."""

from bench.cli import main

if __name__ == "__main__":
    main()
