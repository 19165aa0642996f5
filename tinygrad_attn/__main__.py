"""`python -m tinygrad_attn`: the command line."""

import sys

from .cli import main

sys.exit(main())
