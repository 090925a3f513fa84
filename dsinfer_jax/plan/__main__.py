import sys

from dsinfer_jax.plan import main

if __name__ == "__main__":
    sys.exit(main())
