//! `gpuctl run`: one op on the user's own arrays.

use std::sync::Arc;

use crate::base::{Code, Env, Error, Record, Result};
use crate::device::cpu::Pin;
use crate::device::probe::Select;
use crate::engine::{Engine, KernelCache, Placement, Trials};
use crate::jobs::run::{self, Place, RunConfig};
use crate::op;

use super::args;
use super::commands::{Ctx, threads_of};
use super::output;

impl Ctx<'_> {
    pub(super) fn run_op(&self, a: &args::Run) -> Result<u8> {
        let cfg = RunConfig {
            op: op::find(&a.op)?,
            inputs: a.inputs.clone(),
            outputs: a.outputs.clone(),
            attrs: a.attr.join(","),
            dtype: a.dtype.as_deref().map(str::parse).transpose()?,
            variant: a.variant.clone(),
        };
        let (record, device) = match &a.device {
            Some(device) => {
                let select = Select::parse(device)?;
                if select == Select::All {
                    return Err(Error::new(Code::BadArgument, "run takes one device; name it by its id"));
                }
                let rig = self.rig_of(&select, a.threads, Pin::Free)?;
                run::run(&cfg, &Place::Device(&rig, &Trials::of(self.env), &KernelCache::of(self.env)))?
            }
            None => {
                let placement: Placement = a.placement.parse()?;
                let threads = threads_of(a.threads)?;
                let builder = |env: &Env| {
                    let mut builder = Engine::builder().env(env.clone()).threads(threads).placement(placement.clone());
                    if let Some(tracing) = self.trace {
                        builder = builder.tracer(Arc::clone(&tracing.tracer));
                    }
                    if let Some(spec) = &a.profile {
                        builder = builder.profile(spec.clone());
                    }
                    builder
                };
                run::run(&cfg, &Place::Profile(&self.engine(&placement, builder)?))?
            }
        };
        if a.json.as_deref() != Some("-") {
            output::data(&(run::lines(&record) + "\n"))?;
        }
        let doc = self.document(vec![device], Vec::new(), vec![Record::Run(Box::new(record))], true, 0);
        self.write_json(a.json.as_deref(), &doc)?;
        Ok(0)
    }
}
