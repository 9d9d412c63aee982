"""`python -m ttabench`: the same as the `ttabench` command."""

from ttabench.cli import main

if __name__ == "__main__":
    main()
