//! Sequences of launches as graphs: recorded once, handed to the driver in one call from then on.

// Calls into the driver; each block says what makes it sound.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use crate::base::{Code, Error, Result};
use crate::device::{Launch, Queue, Sequence};

use super::driver::{Context, has_symbol};
use super::queue::{CudaQueue, Keep, Loaded};

/// Functions of the driver since CUDA 11.4.
pub(super) const SYMBOLS: [&str; 6] = [
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
];

impl CudaQueue {
    pub(super) fn record_sequence(&mut self, launches: Vec<Launch>) -> Result<Sequence> {
        if !SYMBOLS.iter().all(|s| has_symbol(s)) {
            return Ok(Sequence::replayed(launches, "the driver has no graphs"));
        }
        // Whatever else goes into it meanwhile, from any thread, would be recorded too.
        if self.is_given() {
            return Ok(Sequence::replayed(launches, "the stream is the program's, which may use it meanwhile"));
        }
        let mut kernels = Vec::with_capacity(launches.len());
        for l in &launches {
            match l.program.raw::<Loaded>(self.serial)? {
                Loaded::Kernel(module) => kernels.push((module, l)),
                Loaded::Gemm(_) => {
                    return Ok(Sequence::replayed(launches, "products by cuBLAS allocate in their first call"));
                }
            }
        }
        if kernels.is_empty() {
            return Ok(Sequence::replayed(launches, "there is nothing to record"));
        }
        let recorded = {
            let _bound = self.ctx.bind()?;
            let all = || kernels.iter().try_for_each(|(module, l)| self.enqueue_kernel(module, l));
            Graph::record(&self.ctx, self.stream, all)?
        };
        Ok(Sequence::recorded(launches, Arc::new(recorded)))
    }

    pub(super) fn replay_sequence(&mut self, sequence: &Sequence) -> Result<()> {
        let Some(graph) = sequence.form::<Graph>() else {
            return sequence.launches().iter().try_for_each(|l| self.launch(l));
        };
        if !Arc::ptr_eq(&graph.ctx, &self.ctx) {
            return Err(Error::new(Code::BufferForeign, "the sequence was recorded on another device"));
        }
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        graph.launch(self.stream)?;
        for program in sequence.programs() {
            self.keep(Keep::Program(program.clone()));
        }
        self.keep(Keep::Graph(graph));
        self.issue(sequence.buffers().cloned(), None)
    }
}

/// A graph that is ready to be launched.
pub(super) struct Graph {
    ctx: Arc<Context>,
    exec: sys::CUgraphExec,
}

// SAFETY: the driver API is thread-safe, and it orders launches of one graph behind each other.
unsafe impl Send for Graph {}
// SAFETY: as above; nothing is changed after it was made.
unsafe impl Sync for Graph {}

impl Graph {
    /// Records what `enqueue` puts in the stream; nothing of it is done. The context must be current, and `enqueue` must call
    /// launches alone.
    pub(super) fn record(
        ctx: &Arc<Context>,
        stream: sys::CUstream,
        enqueue: impl FnOnce() -> Result<()>,
    ) -> Result<Graph> {
        // Other threads, and other streams of this one, go on as if nothing was recorded.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and no recording of it is under way: this ends below, whatever happens.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(stream, mode) };
        ctx.check(begun, "cuStreamBeginCapture", Code::FeatureUnsupported)?;
        let enqueued = enqueue();
        let mut graph = ptr::null_mut();
        // SAFETY: the recording was begun above; `graph` lives through the call.
        let ended = unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) };
        let ended = ctx.check(ended, "cuStreamEndCapture", Code::LaunchFailed);
        let made = enqueued.and(ended).and_then(|()| {
            if graph.is_null() {
                return Err(Error::new(Code::LaunchFailed, "cuStreamEndCapture gave no graph"));
            }
            let mut exec = ptr::null_mut();
            // SAFETY: the graph is alive; `exec` lives through the call. 0: no flags.
            let rc = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
            ctx.check(rc, "cuGraphInstantiate", Code::LaunchFailed)?;
            Ok(Graph { ctx: Arc::clone(ctx), exec })
        });
        if !graph.is_null() {
            // SAFETY: made by the recording, destroyed once; the instance is its own.
            ctx.release("cuGraphDestroy", || unsafe { sys::cuGraphDestroy(graph) });
        }
        made
    }

    /// Enqueues the graph. The context must be current.
    pub(super) fn launch(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the instance is alive; stream and instance are of one context. The caller keeps both, and the buffers that the
        // launches name, until the work is done.
        self.ctx.check(unsafe { sys::cuGraphLaunch(self.exec, stream) }, "cuGraphLaunch", Code::LaunchFailed)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; queues keep graphs of unfinished work alive.
        self.ctx.release("cuGraphExecDestroy", || unsafe { sys::cuGraphExecDestroy(self.exec) });
    }
}
