"""Let the tests of this folder import their helper module by its plain name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
