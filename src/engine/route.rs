//! One call of an op, bound to shapes and placed: what `Engine::run` looks up, and what a program may keep.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::base::{Attr, Attrs, Case, Code, DType, Error, HostTensor, Result};
use crate::device::tap::Labelled;
use crate::kernel::cpu::Call as NativeCall;
use crate::kernel::{self, Arg, Body, NativeArgs, NativeFn};
use crate::op::{OpDesc, Role};

use super::fast::Fast;
use super::place::Explanation;
use super::record::Counts;
use super::trials::Fault;
use super::{Engine, call};

/// Everything about a call that follows from its op, shapes, dtypes and attributes.
pub(super) struct Planned {
    pub(super) op: &'static OpDesc,
    /// Dtype and shape of each given input.
    pub(super) given: Vec<(DType, Vec<u64>)>,
    /// Attributes as they were given.
    pub(super) attrs: Attrs,
    pub(super) case: Case,
    /// Dtype and shape of each result.
    pub(super) results: Vec<(DType, Vec<u64>)>,
    /// Where it goes: the number of a GPU of the pool.
    pub(super) gpu: Option<usize>,
    pub(super) explanation: Arc<Explanation>,
    /// [`super::place::Places::generation`] when it was placed.
    pub(super) generation: u64,
    pub(super) counts: Option<Arc<Counts>>,
    /// The CPU's kernel on host memory; `None` where it takes more than one launch.
    pub(super) direct: OnceLock<Option<Direct>>,
    /// What is wrong with the GPU's kernel, once that is known.
    pub(super) tried: OnceLock<Option<Fault>>,
    /// Why the GPU's kernel cannot be built, once that is known.
    pub(super) unfit: OnceLock<(Code, String)>,
    /// What it is called in a trace, if the engine has one.
    pub(super) label: Option<Labelled>,
}

/// Hash of what identifies a call.
pub(super) fn hash(op: &str, inputs: &[&HostTensor], attrs: &Attrs) -> u64 {
    let mut h = DefaultHasher::new();
    op.hash(&mut h);
    for t in inputs {
        (t.dtype, &t.shape).hash(&mut h);
    }
    for (name, value) in attrs.iter() {
        name.hash(&mut h);
        match value {
            Attr::Int(v) => v.hash(&mut h),
            Attr::Ints(v) => v.hash(&mut h),
            Attr::Float(v) => v.to_bits().hash(&mut h),
            Attr::Word(v) => v.hash(&mut h),
        }
    }
    h.finish()
}

impl Planned {
    /// Whether a call is this one. NaN attributes equal nothing and are planned anew.
    pub(super) fn is(&self, op: &str, inputs: &[&HostTensor], attrs: &Attrs) -> bool {
        self.op.name == op && self.takes(inputs) && self.attrs == *attrs
    }

    pub(super) fn takes(&self, inputs: &[&HostTensor]) -> bool {
        let same = |(t, (dtype, shape)): (&&HostTensor, &(DType, Vec<u64>))| t.dtype == *dtype && t.shape == *shape;
        inputs.len() == self.given.len() && inputs.iter().zip(&self.given).all(same)
    }

    /// An error of the CPU's kernel, with what it is about.
    pub(super) fn failed(&self, e: Error, on: &str) -> Error {
        e.op(self.op.name).shape(&self.case.shape_text()).device(on)
    }

    /// The CPU's kernel on host memory, if it is one launch.
    pub(super) fn direct(&self, engine: &Engine) -> Option<&Direct> {
        let of = || Direct::of(engine, self.op, &self.case, self.given.len()).unwrap_or_default();
        self.direct.get_or_init(of).as_ref()
    }

    pub(super) fn outputs(&self) -> Result<Vec<HostTensor>> {
        call::zeros(&self.results)
    }
}

/// Whether an operand has bytes and begins at a multiple of `align` bytes, as a native kernel needs it.
#[inline(always)]
pub(super) fn lies(bytes: &[u8], align: usize) -> bool {
    bytes.as_ptr().addr().is_multiple_of(align) && !bytes.is_empty()
}

/// A native kernel that takes the operands where they are.
pub(super) struct Direct {
    pub(super) variant: &'static str,
    pub(super) run: NativeFn,
    pub(super) call: NativeCall,
    /// Numbers of the given inputs and of the results, in the order of the kernel's arguments.
    ins: Vec<usize>,
    outs: Vec<usize>,
    /// Results that begin as a given input: (result, input).
    begin: Vec<(usize, usize)>,
    pub(super) align: usize,
}

impl Direct {
    /// It, if the kernel takes all operands in the order in which they are given.
    pub(super) fn as_given(&self) -> Option<&Self> {
        let in_order = |numbers: &[usize]| numbers.iter().enumerate().all(|(i, n)| i == *n);
        (in_order(&self.ins) && in_order(&self.outs) && self.begin.is_empty()).then_some(self)
    }

    /// The kernel that `choose` picks, if it is one launch on operands alone. Pure.
    pub(super) fn of(engine: &Engine, op: &'static OpDesc, case: &Case, given: usize) -> Result<Option<Direct>> {
        let places = &engine.places;
        let info = places.cpu.device().info();
        let choice = kernel::choose(op.kernels, case, info, places.cpu_variant.as_deref())?;
        let (Body::Native(run), [step], []) = (choice.kernel.body, &choice.plan.steps[..], &choice.plan.scratch[..])
        else {
            return Ok(None);
        };
        // Numbers among the read operands and among the written ones.
        let nth = |operand: usize, out: bool| {
            let side = |r: Role| if out { r != Role::In } else { r != Role::Out };
            op.operands[..operand].iter().filter(|o| side(o.role)).count()
        };
        let mut direct = Direct {
            variant: choice.kernel.variant,
            run,
            call: NativeCall { dtype: step.dtype, params: step.params.clone() },
            ins: Vec::new(),
            outs: Vec::new(),
            begin: Vec::new(),
            align: op.operands.iter().enumerate().map(|(i, _)| op.operand_dtype(i, case).size()).max().unwrap_or(1)
                as usize,
        };
        for (arg, writes) in step.args.iter().zip(&step.writes) {
            let Arg::Operand(i) = arg else { return Ok(None) };
            let role = op.operands[*i].role;
            match (role, writes) {
                (Role::In, false) => direct.ins.push(nth(*i, false)),
                (Role::Out, true) => direct.outs.push(nth(*i, true)),
                (Role::InOut, true) => {
                    direct.outs.push(nth(*i, true));
                    // One that was left out begins as zeros, which a fresh result is not always.
                    if nth(*i, false) >= given {
                        return Ok(None);
                    }
                    direct.begin.push((nth(*i, true), nth(*i, false)));
                }
                (Role::In, true) | (Role::Out | Role::InOut, false) => return Ok(None),
            }
        }
        let mut once = direct.outs.clone();
        once.sort_unstable();
        once.dedup();
        let whole = once.len() == direct.outs.len() && once.len() == op.written().count();
        Ok(Some(direct).filter(|d| whole && d.ins.iter().all(|i| *i < given)))
    }

    /// Runs it; `None` if the operands do not lie as the kernel needs them, or the CPU cannot take them there.
    pub(super) fn run(
        &self,
        engine: &Engine,
        inputs: &[&HostTensor],
        outputs: &mut [HostTensor],
    ) -> Option<Result<()>> {
        let lies = |bytes: &[u8]| lies(bytes, self.align);
        if !inputs.iter().all(|t| lies(t.bytes())) || !outputs.iter().all(|t| lies(t.bytes())) {
            return None;
        }
        for (result, input) in &self.begin {
            outputs.get_mut(*result)?.bytes_mut().copy_from_slice(inputs.get(*input)?.bytes());
        }
        let mut args = NativeArgs {
            ins: self.ins.iter().filter_map(|i| inputs.get(*i)).map(|t| t.bytes()).collect(),
            outs: Vec::with_capacity(self.outs.len()),
        };
        let mut free: [Option<&mut HostTensor>; 4] = [const { None }; 4];
        if outputs.len() > free.len() {
            return None;
        }
        free.iter_mut().zip(outputs).for_each(|(slot, t)| *slot = Some(t));
        for i in &self.outs {
            args.outs.push(free.get_mut(*i)?.take()?.bytes_mut());
        }
        engine.places.cpu.device().native(self.run, &mut args, &self.call)
    }
}

/// Where a call ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran<'e> {
    /// Id of the device that computed the results.
    pub on: &'e str,
    /// True if a GPU was chosen and failed, so that the CPU computed them.
    pub fallback: bool,
}

/// A call of one op with fixed shapes, dtypes and attributes, to be made often: it is bound and placed once, and on the CPU
/// the kernel works on the caller's memory. A device that drops out is noticed.
///
/// ```
/// use gpuctl::base::{Attrs, HostTensor};
/// use gpuctl::engine::Engine;
///
/// # fn main() -> gpuctl::base::Result<()> {
/// let engine = Engine::builder().profile("preset:always-cpu").build()?;
/// let x = HostTensor::from_slice(&[-1.0f32, 0.0, 2.5], &[3])?;
/// let route = engine.route("relu", &[&x], &Attrs::new())?;
/// let mut y = route.outputs()?;
/// assert_eq!(route.run_into(&[&x], &mut y)?.on, "cpu");
/// assert_eq!(y[0].to_vec::<f32>()?, [0.0, 0.0, 2.5]);
/// println!("{}", route.why());
/// # Ok(())
/// # }
/// ```
pub struct Route<'e> {
    engine: &'e Engine,
    planned: Arc<Planned>,
    fast: Option<Fast<'e>>,
}

impl std::fmt::Debug for Route<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Route({})", self.planned.explanation)
    }
}

impl<'e> Route<'e> {
    pub(super) fn new(engine: &'e Engine, planned: Arc<Planned>) -> Self {
        Route { engine, fast: Fast::of(engine, &planned), planned }
    }

    /// Tensors of the results' dtypes and shapes, filled with zeros.
    pub fn outputs(&self) -> Result<Vec<HostTensor>> {
        self.planned.outputs()
    }

    /// Where the call goes, and why, as of when the route was made.
    pub fn why(&self) -> &Explanation {
        &self.planned.explanation
    }

    /// Makes the call. `outputs` are overwritten; after an error their contents mean nothing.
    ///
    /// Errors: `ShapeMismatch` for operands that are not those of the route, and what [`Engine::run`] may give.
    pub fn run_into(&self, inputs: &[&HostTensor], outputs: &mut [HostTensor]) -> Result<Ran<'e>> {
        if let Some(fast) = &self.fast
            && let Some(ran) = fast.run(inputs, outputs)
        {
            return match ran {
                Ok(()) => Ok(Ran { on: fast.on, fallback: false }),
                Err(e) => Err(self.planned.failed(e, fast.on)),
            };
        }
        self.run_anyhow(inputs, outputs)
    }

    #[cold]
    fn run_anyhow(&self, inputs: &[&HostTensor], outputs: &mut [HostTensor]) -> Result<Ran<'e>> {
        let p = &self.planned;
        let results = outputs.iter().zip(&p.results);
        let fit =
            outputs.len() == p.results.len() && results.into_iter().all(|(t, r)| t.dtype == r.0 && t.shape == r.1);
        if !fit || !p.takes(inputs) {
            let why = format!("operands differ from the route's: inputs {:?}, results {:?}", p.given, p.results);
            return Err(Error::new(Code::ShapeMismatch, why).op(p.op.name).shape(&p.case.shape_text()));
        }
        let engine = self.engine;
        if engine.places.generation() == p.generation {
            return engine.go(p, inputs, outputs, None).map(|d| d.ran);
        }
        // A device has dropped out since: the call is placed anew.
        let again = engine.planned(call::find(p.op.name)?, inputs, &p.attrs)?;
        engine.go(&again, inputs, outputs, None).map(|d| d.ran)
    }
}
