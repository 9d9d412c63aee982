"""`python -m ttabench.harness`: the command line of lm-eval with a method as model."""

import sys

from ttabench.harness.model import main

sys.exit(main())
