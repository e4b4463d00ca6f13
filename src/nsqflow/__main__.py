"""``python -m nsqflow`` is the command ``nsqflow``."""

import sys

from nsqflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
