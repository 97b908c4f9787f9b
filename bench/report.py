"""Write what is generated in README.md, docs and the model's card: `report/__init__.py` says what."""

import sys

from report.documents import main

if __name__ == "__main__":
    sys.exit(main())
