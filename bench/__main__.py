"""`python -m bench` is `layerbench`, also from a checkout that was not installed.

In a folder with a `bench` of its own, Python runs that one; `python -m layerbench_start` is the same by another name.
"""

from bench.cli import main

if __name__ == "__main__":
    main()
