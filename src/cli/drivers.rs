//! Which drivers a command loads: those that answer when processes of their own ask them. The others are left out with a line
//! each, and the command goes on.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};

use crate::base::{Backend, Env, Result, os};
use crate::engine::{Engine, EngineBuilder, Placement};
use crate::jobs::inventory::{self, Sound, Waits};

use super::commands::{Ctx, this_program};
use super::output;

/// What was found out about drivers, once.
#[derive(Debug, Default)]
pub(super) struct Drivers {
    /// The environment without bad drivers, and what must be there as long as they are left out.
    found: OnceCell<(Env, Sound)>,
}

impl Drivers {
    /// For a process that was started by one that has found out: its environment says it.
    pub(super) fn settled(env: &Env) -> Self {
        Drivers { found: OnceCell::from((env.clone(), Sound::default())) }
    }
}

impl Ctx<'_> {
    /// The environment to open devices of these backends in. Drivers are asked at the first call, before this process has loaded
    /// any; a command has one selection of devices.
    ///
    /// Errors: there is no path to this program.
    pub(super) fn sound(&self, backends: &[Backend]) -> Result<&Env> {
        if let Some((env, _)) = self.drivers.found.get() {
            return Ok(env);
        }
        let found = inventory::sound(backends, Waits::LONG, self.env, &this_program()?);
        // Said to whoever wants quiet, too: devices are missing.
        for row in found.left_out() {
            output::talk(&format!("gpuctl: left out: {}: {}; {}", row.what, row.reason, row.next));
        }
        for (name, value) in found.variables() {
            os::set_variable(name, value.map(OsString::as_os_str));
        }
        let without: Vec<Backend> = self.env.without.iter().chain(found.without()).copied().collect();
        if !found.without().is_empty() {
            // For the processes that this one starts.
            let names: Vec<&str> = without.iter().map(|b| b.name()).collect();
            os::set_variable("GPUCTL_DISABLE_GPU", Some(OsStr::new(&names.join(","))));
        }
        let env = Env { without, left_out: found.left_out().to_vec(), ..self.env.clone() };
        Ok(&self.drivers.found.get_or_init(|| (env, found)).0)
    }

    /// An engine that loads sound drivers only. None is asked where the profile and the placement use no GPU.
    ///
    /// Errors: those of building it.
    pub(super) fn engine(&self, placement: &Placement, builder: impl Fn(&Env) -> EngineBuilder) -> Result<Engine> {
        if !matches!(placement, Placement::ForceGpu(_)) {
            let engine = builder(self.env).build()?;
            if !engine.profile().may_use_gpu_by(placement.policy()) || self.sound(&Backend::ALL)? == self.env {
                return Ok(engine);
            }
        }
        builder(self.sound(&Backend::ALL)?).build()
    }
}
