"""Run the recipe cases of a folder and print every mismatch: ``python tools/check_recipe.py DIR``.

Reads nothing but the folder: ``*.jsonl`` with one case a line, and ``tokenizer_v41.json.gz`` for
the cases that name it. Prints ``N passed, N failed`` at the end; exit status 1 on any failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from recipe_cases import CaseRunner, differences, load_cases


def main(arguments: list[str] | None = None) -> int:
    """Check the folder; 0 when every case is equal, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with *.jsonl case files")
    parser.add_argument("--only", default="", help="only cases whose name begins with this")
    parser.add_argument("--official", action="store_true", help="run the official package instead")
    options = parser.parse_args(arguments)
    if options.official:
        import deepseek_recipe as package
    else:
        import dsinfer_jax.recipe as package
    runner = CaseRunner(package, options.folder)
    passed = failed = 0
    for path in sorted(options.folder.glob("*.jsonl")):
        failed_here = 0
        for case in load_cases(path):
            if not case["name"].startswith(options.only):
                continue
            found = differences(case, runner)
            if found:
                failed_here += 1
                print(f"FAIL {path.name} {case['name']}")
                for line in found:
                    print(f"    {line}")
            else:
                passed += 1
        failed += failed_here
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
