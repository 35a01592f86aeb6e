"""``python -m llmrt.detokenizer DESCRIPTOR``."""

import sys

from llmrt.detokenizer.process import main

sys.exit(main())
