"""Entry point of `python -m ttabench`, equal to the `ttabench` command."""

from ttabench.core import remove_current_folder_from_path

if __name__ == "__main__":
    remove_current_folder_from_path()
    from ttabench.cli.app import main

    main()
