"""``python -m llmrt.gateway DESCRIPTOR``."""

import sys

from llmrt.gateway.process import main

sys.exit(main())
