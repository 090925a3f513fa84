import sys

from dsinfer_jax.generate import main

if __name__ == "__main__":
    sys.exit(main())
