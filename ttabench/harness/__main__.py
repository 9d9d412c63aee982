"""`python -m ttabench.harness`: lm-eval's command line under a method."""

import sys

from ttabench.harness.model import main

sys.exit(main())
