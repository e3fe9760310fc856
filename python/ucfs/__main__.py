# SPDX-License-Identifier: Apache-2.0
"""python -m ucfs ARGUMENT...: the program ucfs."""

import os
import sys

from ._mount import find_program

program = find_program()
os.execv(program, [program] + sys.argv[1:])
