"""A process of its own, started by mathematics.py: reads [reference, answer] lines, prints whether they are equal.

It has no time limit of its own (math-verify's are signals, which SymPy can outlast): the caller kills it."""

import json
import resource
import sys

from math_verify import parse, verify

resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
print("ready", flush=True)
for line in sys.stdin:
    reference, answer = json.loads(line)
    try:
        expected, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (reference, answer))
        same = bool(given) and verify(expected, given, timeout_seconds=None)
    except Exception:
        same = False
    print("true" if same else "false", flush=True)
