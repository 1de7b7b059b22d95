"""What makes a process fast at training on a CPU, beside the code it runs."""

import ctypes
import os
import sys

# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def prepare_process() -> None:
    """Keep freed memory and compiled matrix products. Call it before the first matrix product.

    Large tensors: glibc's malloc gives each back to the system, which clears its pages anew for
    the next one. Matrix products: oneDNN compiles one for every shape and keeps 1,024, fewer than
    an epoch of a small corpus may have (benchmarks/README.md has figures).
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "65536")
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(_M_TOP_PAD, 1 << 26)
