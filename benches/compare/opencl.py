"""One OpenCL device through the loader, for the races: buffers, one kernel at a time. Standard library only."""

import array
import ctypes
import sys


class Device:
    """The n-th OpenCL device over all platforms, as gpuctl counts them."""

    def __init__(self, index):
        self.cl = cl = ctypes.CDLL("libOpenCL.so.1")
        for name in ("clCreateContext", "clCreateCommandQueue", "clCreateBuffer", "clCreateProgramWithSource",
                     "clCreateKernel"):
            getattr(cl, name).restype = ctypes.c_void_p
        count = ctypes.c_uint()
        self.check(cl.clGetPlatformIDs(0, None, ctypes.byref(count)))
        platforms = (ctypes.c_void_p * count.value)()
        self.check(cl.clGetPlatformIDs(count, platforms, None))
        devices = []
        for p in platforms:
            found = ctypes.c_uint()
            everything = ctypes.c_ulong(0xFFFFFFFF)
            if cl.clGetDeviceIDs(ctypes.c_void_p(p), everything, 0, None, ctypes.byref(found)) != 0:
                continue
            list_ = (ctypes.c_void_p * found.value)()
            self.check(cl.clGetDeviceIDs(ctypes.c_void_p(p), everything, found, list_, None))
            devices += list(list_)
        if index >= len(devices):
            sys.exit(f"no OpenCL device {index}; there are {len(devices)}")
        self.device = ctypes.c_void_p(devices[index])
        status = ctypes.c_int()
        one = (ctypes.c_void_p * 1)(self.device.value)
        self.context = ctypes.c_void_p(cl.clCreateContext(None, 1, one, None, None, ctypes.byref(status)))
        self.check(status.value)
        self.queue = ctypes.c_void_p(
            cl.clCreateCommandQueue(self.context, self.device, ctypes.c_ulong(0), ctypes.byref(status)))
        self.check(status.value)

    def check(self, status):
        if status != 0:
            sys.exit(f"OpenCL status {status}")

    def buffer(self, data):
        status, size = ctypes.c_int(), ctypes.c_size_t(len(data) * 4)
        raw = (ctypes.c_float * len(data)).from_buffer(data)
        mem = ctypes.c_void_p(
            self.cl.clCreateBuffer(self.context, ctypes.c_ulong(1 | 32), size, raw, ctypes.byref(status)))
        self.check(status.value)
        return mem

    def read(self, mem, count):
        out = array.array("f", bytes(4 * count))
        raw = (ctypes.c_float * count).from_buffer(out)
        self.check(self.cl.clEnqueueReadBuffer(self.queue, mem, 1, ctypes.c_size_t(0), ctypes.c_size_t(4 * count), raw,
                                               0, None, None))
        return out

    def finish(self):
        self.check(self.cl.clFinish(self.queue))

    def kernel(self, text, name, *args):
        """A kernel of a program with its arguments, which are buffers or ctypes numbers."""
        cl, status = self.cl, ctypes.c_int()
        texts = (ctypes.c_char_p * 1)(text)
        program = ctypes.c_void_p(cl.clCreateProgramWithSource(self.context, 1, texts, None, ctypes.byref(status)))
        self.check(status.value)
        self.check(cl.clBuildProgram(program, 0, None, None, None, None))
        kernel = ctypes.c_void_p(cl.clCreateKernel(program, name, ctypes.byref(status)))
        self.check(status.value)
        for i, arg in enumerate(args):
            self.check(cl.clSetKernelArg(kernel, i, ctypes.c_size_t(ctypes.sizeof(arg)), ctypes.byref(arg)))
        return kernel

    def launch(self, kernel, items, group=None):
        """Runs it over so many work-items and waits."""
        size = lambda n: (ctypes.c_size_t * 1)(n)
        local = size(group) if group else None
        self.check(self.cl.clEnqueueNDRangeKernel(self.queue, kernel, 1, None, size(items), local, 0, None, None))
        self.finish()
