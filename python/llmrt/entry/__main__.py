"""``python -m llmrt.entry DESCRIPTOR``."""

import sys

from llmrt.entry.process import main

sys.exit(main())
