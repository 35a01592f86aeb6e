from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# As llmrt.runner does, for tests that import torch first: spinning threads stall each other on a busy machine.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
