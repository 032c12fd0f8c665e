#!/usr/bin/env python3
"""A worker that cannot be ended, as one that hangs in the kernel: another process traces it, and until that one is gone nobody
else is told of its end. Prints the other's process id, or nothing where tracing is not allowed."""

import ctypes
import json
import os
import signal
import time

SEIZE, SET_TRACER = 0x4206, 0x59616D61

libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
worker = os.getpid()
libc.prctl(SET_TRACER, ctypes.c_ulong(-1 % 2**64), 0, 0, 0)
if os.fork() == 0:
    if libc.ptrace(SEIZE, worker, None, None) != 0:
        os.kill(worker, signal.SIGKILL)
        os._exit(1)
    print(json.dumps({"held": os.getpid()}), flush=True)
    time.sleep(60)
    os._exit(0)
signal.pause()
