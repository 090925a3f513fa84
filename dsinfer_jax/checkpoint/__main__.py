import sys

from dsinfer_jax.checkpoint.convert import main

if __name__ == "__main__":
    sys.exit(main())
