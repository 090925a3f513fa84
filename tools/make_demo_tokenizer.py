"""Write the tokenizer of the demo model: `python tools/make_demo_tokenizer.py`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from demo_training.tokenizer import ENTRIES, PATH, build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, nargs="?", default=PATH)
    output = parser.parse_args().output
    build().save(str(output))
    print(f"wrote {output}: {ENTRIES} entries")


if __name__ == "__main__":
    main()
