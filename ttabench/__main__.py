"""`python -m ttabench`: the same as the `ttabench` command."""

from ttabench.core import leave_current_folder

if __name__ == "__main__":
    leave_current_folder()
    from ttabench.cli.app import main

    main()
