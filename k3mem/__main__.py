"""`python -m k3mem`: the command line."""

from k3mem.cli import main

if __name__ == "__main__":
    main()
