"""``python -m labs_common`` is ``palab``."""

from labs_common.cli import main

if __name__ == "__main__":
    main()
