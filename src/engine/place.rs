//! Where a call runs, and why: the profile's answer joined with what is really here.
//!
//! Deciding runs nothing. GPUs are probed at the first call that the profile would send to one; a profile that sends
//! nothing there opens no driver at all.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::base::record::KernelsRecord;
use crate::base::{Absence, Backend, Case, Code, DeviceClass, DeviceInfo, Env, Error, Features, Result};
use crate::device::cpu::Pin;
use crate::device::probe::{self, CpuConfig, Found, Select};
use crate::kernel;
use crate::op::OpDesc;
use crate::profile::{self, Call, Chooser, Entry, Fit, Kind, Operands, Place, Policy, Profile, ProfileDevice};

use super::Runner;
use super::gpu::{Common, Gpu};

/// Who decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The profile.
    #[default]
    Automatic,
    /// Everything on the CPU.
    ForceCpu,
    /// Everything on this device (id or uid); the CPU only if a call fails there. A kernel that computes wrong there is an
    /// error.
    ForceGpu(String),
    /// Where the operands are. The engine's operands lie in host memory, so this is the CPU; no driver is opened.
    MinimizeTransfers,
    /// The least predicted time, copies included, without the profile's margin.
    CostBased,
}

impl Placement {
    /// What a profile is asked for.
    pub(crate) fn policy(&self) -> Policy {
        match self {
            Placement::Automatic => Policy::Automatic,
            Placement::ForceCpu => Policy::ForceCpu,
            Placement::ForceGpu(_) => Policy::ForceGpu,
            Placement::MinimizeTransfers => Policy::MinimizeTransfers,
            Placement::CostBased => Policy::CostBased,
        }
    }
}

impl std::str::FromStr for Placement {
    type Err = Error;

    /// The words of [`Policy`]; `force-gpu:ID` names the device.
    fn from_str(s: &str) -> Result<Self> {
        if let Some(id) = s.strip_prefix("force-gpu:").filter(|id| !id.is_empty()) {
            return Ok(Placement::ForceGpu(id.into()));
        }
        match s.parse()? {
            Policy::Automatic => Ok(Placement::Automatic),
            Policy::ForceCpu => Ok(Placement::ForceCpu),
            Policy::MinimizeTransfers => Ok(Placement::MinimizeTransfers),
            Policy::CostBased => Ok(Placement::CostBased),
            Policy::ForceGpu => Err(Error::new(Code::BadArgument, "force-gpu needs the device: force-gpu:ID")),
        }
    }
}

/// Why a call goes where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The profile's answer.
    Profile(profile::Reason),
    /// [`Placement::ForceCpu`] or [`Placement::ForceGpu`].
    Forced,
    /// `GPUCTL_DISABLE_GPU` is set.
    Disabled,
    /// The profile was made against another CPU; the sentence says which.
    OtherHost(String),
    /// The profile would use a device that is not here, is another one now, or was not selected; the sentence says so.
    NoDevice(String),
    /// The device has no kernel for this case; the reason.
    NoKernel(String),
    /// The device failed earlier in a way that makes it unusable; how.
    Quarantined(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Profile(reason) => f.write_str(reason.text()),
            Why::Forced => f.write_str("the placement is forced"),
            Why::Disabled => f.write_str("GPUs are switched off (GPUCTL_DISABLE_GPU)"),
            Why::OtherHost(text) | Why::NoDevice(text) => f.write_str(text),
            Why::NoKernel(text) => write!(f, "no kernel fits there: {text}"),
            Why::Quarantined(text) => write!(f, "the device failed before: {text}"),
        }
    }
}

/// A decision with its grounds; `Engine::run` acts on exactly this.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The case's name without its data: `gemm/f32/m64,n64,k64/-`.
    pub case: String,
    /// Shape family, if the case belongs to one.
    pub family: Option<&'static str>,
    /// CPU or GPU.
    pub place: Place,
    /// Id of the device that will run it.
    pub device: String,
    /// Why.
    pub why: Why,
    /// Work of the case, e.g. m·n·k.
    pub work: u128,
    /// What a cost curve knows of it.
    pub features: Features,
    /// Unit of the op's thresholds.
    pub unit: &'static str,
    /// The entry that decided, if one has this key.
    pub entry: Option<Entry>,
    /// True if the entry is a preset's: assumed, not measured.
    pub assumed: bool,
    /// Remarks: another driver than the measured one, a software or simulated device.
    pub notes: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}: {}", self.case, self.device, self.why)?;
        if let Some(e) = &self.entry
            && let Some(t) = e.threshold
        {
            let cube = if e.unit == "dim" { "³" } else { "" };
            write!(f, "; work {}, threshold {t}{cube} {}", self.work, e.unit)?;
        }
        if self.assumed {
            f.write_str(" (assumed, not measured)")?;
        } else if self.entry.as_ref().is_some_and(|e| e.edited) {
            f.write_str(" (edited by hand, not measured)")?;
        }
        self.notes.iter().try_for_each(|n| write!(f, "; {n}"))
    }
}

/// The GPUs of an engine, found at first need.
pub(super) struct Gpus {
    pub(super) all: Vec<Arc<Gpu>>,
    pub(super) absent: Vec<Absence>,
    /// The profile's devices: how each fits what is here, and which GPU it is.
    fits: Vec<(ProfileDevice, Fit, Option<usize>)>,
}

impl Gpus {
    fn note_of(&self, gpu: &Gpu) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some((_, fit @ Fit::OtherDriver { .. }, _)) = self.fits.iter().find(|(d, ..)| d.uid == gpu.info.uid) {
            notes.push(fit.text());
        }
        match gpu.info.class {
            DeviceClass::Software => notes.push("a software device".into()),
            DeviceClass::Simulated => notes.push("a simulated device".into()),
            _ => {}
        }
        notes
    }
    fn absence(&self) -> String {
        let reasons: Vec<_> = self.absent.iter().map(|a| format!("{}: {}", a.what, a.reason)).collect();
        if reasons.is_empty() { "no GPU is here".into() } else { format!("no GPU is here ({})", reasons.join("; ")) }
    }
}

/// Everything that a decision depends on.
pub(super) struct Places {
    pub chooser: Chooser,
    pub placement: Placement,
    pub select: Select,
    pub env: Env,
    pub cpu: Arc<Runner>,
    pub cpu_variant: Option<String>,
    /// Why the profile's CPU is not this one, if it is not.
    pub other_host: Option<String>,
    pub given: Mutex<Vec<Gpu>>,
    pub gpus: OnceLock<Gpus>,
    /// Devices that the program asked for by name, besides those.
    pub beyond: Mutex<Vec<Arc<Gpu>>>,
    pub common: Arc<Common>,
}

/// A decision: what [`Explanation`] says, and the device itself.
pub(super) struct Decided<'e> {
    pub gpu: Option<&'e Gpu>,
    pub why: Why,
    pub entry: Option<&'e Entry>,
    pub assumed: bool,
    pub family: Option<&'static str>,
    pub work: u128,
}

impl Places {
    /// The profile.
    pub(super) fn profile(&self) -> &Profile {
        self.chooser.profile()
    }

    /// Changes when an earlier decision may be void.
    pub(super) fn generation(&self) -> u64 {
        self.common.changes.load(Ordering::Acquire)
    }

    /// GPU number `at`.
    pub(super) fn gpu(&self, at: usize) -> Option<&Arc<Gpu>> {
        self.gpus.get()?.all.get(at)
    }

    /// The number of the GPU with this id or uid, if it is here; probes what the profile and the selection allow.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        (!self.env.disable_gpu).then(|| self.gpus().all.iter().position(|g| g.called(name)))?
    }

    /// A GPU by its id or uid, whatever the profile says of it.
    pub(super) fn named(&self, name: &str) -> Result<Arc<Gpu>> {
        if self.env.disable_gpu {
            return Err(Error::new(Code::DeviceDisabled, format!("'{name}' was asked for")));
        }
        let allowed = |gpu: &Arc<Gpu>| match self.selected(gpu) {
            true => Ok(Arc::clone(gpu)),
            false => Err(Error::new(Code::DeviceMissing, format!("'{name}' is not among the selected devices"))),
        };
        if let Some(gpu) = self.gpus().all.iter().find(|g| g.called(name)) {
            return allowed(gpu);
        }
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = beyond.iter().find(|g| g.called(name)) {
            return allowed(gpu);
        }
        let backends = Select::Named(vec![name.to_string()]).backends();
        let seen = probe::inventory_of(&backends, &self.env, CpuConfig { threads: 1, pin: Pin::Free })?;
        let absent: Vec<_> = seen.absent.iter().map(|a| format!("{}: {}", a.what, a.reason)).collect();
        let found = seen.found.into_iter().filter(|f| f.info.backend != Backend::Cpu);
        let Some(found) = found.into_iter().find(|f| f.info.id == name || f.info.uid == name) else {
            let why = format!("the engine has no device '{name}' {}", absent.join("; "));
            return Err(Error::new(Code::DeviceMissing, why.trim_end()));
        };
        let gpu = Arc::new(Gpu::seen(found, &self.common));
        let allowed = allowed(&gpu)?;
        beyond.push(gpu);
        Ok(allowed)
    }

    /// A decision that a caller made.
    pub(super) fn forced<'s>(&'s self, op: &'static OpDesc, case: &Case, gpu: &'s Gpu) -> Decided<'s> {
        let (family, work) = (op.family(case).map(|f| f.name), (op.work)(case));
        let why = self.obstacle(op, case, gpu);
        let gpu = if why.is_none() { Some(gpu) } else { None };
        Decided { gpu, why: why.unwrap_or(Why::Forced), entry: None, assumed: false, family, work }
    }

    /// The number of a GPU.
    pub(super) fn number(&self, gpu: &Gpu) -> Option<usize> {
        self.gpus.get()?.all.iter().position(|g| std::ptr::eq(&**g, gpu))
    }

    /// Opens devices again whose rest is over.
    pub(super) fn look_after(&self) {
        if self.common.resting.load(Ordering::Relaxed) > 0
            && let Some(gpus) = self.gpus.get()
        {
            gpus.all.iter().for_each(Gpu::look_after);
        }
    }

    /// What became of the programs of the GPUs that were opened.
    pub(super) fn told(&self) -> Vec<KernelsRecord> {
        self.gpus.get().map_or_else(Vec::new, |g| g.all.iter().filter_map(|g| Some(g.at_hand()?.kernels())).collect())
    }

    /// The GPUs; probed once. Only backends of devices that the profile sends work to are asked.
    fn gpus(&self) -> &Gpus {
        self.gpus.get_or_init(|| {
            let given = std::mem::take(&mut *self.given.lock().unwrap_or_else(PoisonError::into_inner));
            let mut gpus: Vec<Arc<Gpu>> = given.into_iter().map(Arc::new).collect();
            let mut absent = Vec::new();
            let wanted: Vec<Backend> = match (&self.placement, &self.select) {
                (Placement::ForceGpu(name), _) => Select::Named(vec![name.clone()]).backends(),
                (_, select) => {
                    let selected = select.backends();
                    let used = self.profile().backends_by(self.placement.policy());
                    used.into_iter().filter(|b| selected.contains(b)).collect()
                }
            };
            let known = |uid: &str| gpus.iter().any(|g| g.info.uid == uid);
            // A forced device need not be one of the profile's.
            let forced_known = match &self.placement {
                Placement::ForceGpu(name) => gpus.iter().any(|g| g.called(name)),
                _ => true,
            };
            let all_known = forced_known
                && self.profile().kind == Kind::Calibrated
                && self.profile().devices.iter().all(|d| known(&d.uid));
            if !wanted.is_empty() && !self.env.disable_gpu && !all_known {
                match probe::inventory_of(&wanted, &self.env, CpuConfig { threads: 1, pin: Pin::Free }) {
                    Ok(seen) => {
                        let new = |f: &Found| f.info.backend != Backend::Cpu && !known(&f.info.uid);
                        let seen_anew = |f: Found| Arc::new(Gpu::seen(f, &self.common));
                        let fresh: Vec<Arc<Gpu>> = seen.found.into_iter().filter(new).map(seen_anew).collect();
                        gpus.extend(fresh);
                        absent = seen.absent;
                    }
                    Err(e) => log::warn!("no device was probed: {e}"),
                }
            }
            let infos: Vec<DeviceInfo> = gpus.iter().map(|g| g.info.clone()).collect();
            let at = |uid: &str| infos.iter().position(|i| i.uid == uid);
            let fits: Vec<_> = self
                .profile()
                .check(&infos)
                .into_iter()
                .filter(|(d, _)| d.backend != Backend::Cpu.name())
                .map(|(d, fit)| {
                    let gpu = at(&d.uid);
                    (d, fit, gpu)
                })
                .collect();
            for (device, fit, _) in fits.iter().filter(|(_, fit, _)| *fit != Fit::Exact) {
                log::warn!("profile '{}', {}: {}", self.profile().name, device.id, fit.text());
            }
            Gpus { all: gpus, absent, fits }
        })
    }

    /// Whether the selection lets a GPU take part.
    fn selected(&self, gpu: &Gpu) -> bool {
        match &self.select {
            Select::Named(names) => names.iter().any(|n| gpu.called(n)),
            Select::All | Select::Default => true,
        }
    }

    /// Where a case goes. Probes devices at the first case that the profile would send to one; runs nothing.
    pub(super) fn decide<'s>(&'s self, op: &'static OpDesc, case: &Case) -> Decided<'s> {
        let family = op.family(case).map(|f| f.name);
        let work = (op.work)(case);
        let decided = |gpu: Option<&'s Gpu>, why: Why| Decided { gpu, why, entry: None, assumed: false, family, work };
        if self.env.disable_gpu {
            return decided(None, Why::Disabled);
        }
        match &self.placement {
            Placement::ForceCpu => return decided(None, Why::Forced),
            Placement::ForceGpu(name) => {
                let Some(gpu) = self.gpus().all.iter().find(|g| g.called(name)) else {
                    return decided(None, Why::NoDevice(format!("'{name}' is not here")));
                };
                return match self.obstacle(op, case, gpu) {
                    Some(why) => decided(None, why),
                    None => decided(Some(gpu), Why::Forced),
                };
            }
            Placement::Automatic | Placement::MinimizeTransfers | Placement::CostBased => {}
        }
        let policy = self.placement.policy();
        let call = Call {
            op: op.name,
            dtype: case.dtype,
            family,
            unit: op.unit.name(),
            features: op.features(case),
            operands: Operands::Host,
            threads: self.cpu.device().info().compute_units,
            cpu_variant: self.cpu_variant.as_deref().unwrap_or(profile::CPU_AUTO),
        };
        match self.profile().kind {
            Kind::Preset => self.assumed(op, case, policy, &call),
            Kind::Calibrated => self.measured(op, case, policy, &call),
        }
    }

    /// The decision of a preset: the first GPU that can run the case.
    fn assumed(&self, op: &'static OpDesc, case: &Case, policy: Policy, call: &Call<'_>) -> Decided<'_> {
        let placed = self.chooser.choose(policy, call);
        let (family, work) = (op.family(case).map(|f| f.name), call.features.work);
        let decided = |gpu, why| Decided { gpu, why, entry: placed.entry, assumed: true, family, work };
        if placed.place == Place::Cpu {
            return decided(None, Why::Profile(placed.why));
        }
        let gpus = self.gpus();
        // Nothing was measured, so only what is a GPU beyond doubt, or was selected, takes part.
        let real = |g: &&Gpu| {
            let doubtful = matches!(g.info.class, DeviceClass::Software | DeviceClass::Simulated | DeviceClass::Cpu);
            self.selected(g) && (self.select != Select::Default || !doubtful)
        };
        let mut why = Why::NoDevice(gpus.absence());
        for gpu in gpus.all.iter().map(|g| &**g).filter(real) {
            match self.obstacle(op, case, gpu) {
                None => return decided(Some(gpu), Why::Profile(placed.why)),
                Some(obstacle) => why = obstacle,
            }
        }
        decided(None, why)
    }

    /// The decision of a calibrated profile: among the devices that would be chosen and can be used, the best.
    fn measured(&self, op: &'static OpDesc, case: &Case, policy: Policy, call: &Call<'_>) -> Decided<'_> {
        let (family, work) = (op.family(case).map(|f| f.name), call.features.work);
        let decided = |gpu, why, entry| Decided { gpu, why, entry, assumed: false, family, work };
        let devices = &self.profile().devices;
        let mut usable: Vec<(usize, &Gpu)> = Vec::new();
        // What kept the call from a device that it would have gone to is the answer worth telling.
        let mut obstacle = None;
        let placed = self.chooser.choose_among(policy, call, |at| {
            let why = match (&self.other_host, devices.get(at)) {
                (Some(other), _) => Why::OtherHost(other.clone()),
                (None, None) => return false,
                (None, Some(device)) => match self.usable(op, case, device) {
                    Ok(gpu) => {
                        usable.push((at, gpu));
                        return true;
                    }
                    Err(why) => why,
                },
            };
            obstacle = Some((at, why));
            false
        });
        let chosen = placed.device.and_then(|d| usable.iter().find(|(at, _)| devices.get(*at) == Some(d)));
        match (chosen, obstacle) {
            (Some((_, gpu)), _) => decided(Some(*gpu), Why::Profile(placed.why), placed.entry),
            (None, Some((at, why))) => {
                let entry = devices.get(at).and_then(|d| self.chooser.entry(call, d, profile::choose::ALWAYS));
                decided(None, why, entry)
            }
            (None, None) => decided(None, Why::Profile(placed.why), placed.entry),
        }
    }

    /// The GPU that a device of the profile is now, or what speaks against using it.
    fn usable(&self, op: &'static OpDesc, case: &Case, device: &ProfileDevice) -> Result<&Gpu, Why> {
        let gpus = self.gpus();
        let missing = |text: String| Why::NoDevice(format!("{}: {text}", device.id));
        let Some((_, fit, Some(at))) = gpus.fits.iter().find(|(d, ..)| d.uid == device.uid) else {
            return Err(missing(gpus.absence()));
        };
        if !fit.usable() {
            return Err(missing(fit.text()));
        }
        let gpu = &gpus.all[*at];
        if !self.selected(gpu) {
            return Err(missing("not among the selected devices".into()));
        }
        self.obstacle(op, case, gpu).map_or(Ok(gpu), Err)
    }

    /// What keeps a case from running on a GPU that is here.
    fn obstacle(&self, op: &'static OpDesc, case: &Case, gpu: &Gpu) -> Option<Why> {
        if let Some(why) = gpu.out() {
            return Some(Why::Quarantined(why));
        }
        kernel::choose(op.kernels, case, &gpu.info, None).err().map(|e| Why::NoKernel(e.detail().to_string()))
    }

    /// A device that calls have run on, or the CPU.
    pub(super) fn info(&self, id: &str) -> Option<&DeviceInfo> {
        let cpu = self.cpu.device().info();
        let gpus = || self.gpus.get()?.all.iter().map(|g| &g.info).find(|i| i.id == id);
        if cpu.id == id { Some(cpu) } else { gpus() }
    }

    /// A decision in full.
    pub(super) fn explain(&self, op: &'static OpDesc, case: &Case, decided: &Decided<'_>) -> Explanation {
        let device = decided.gpu.map_or_else(|| self.cpu.device().info().id.clone(), |g| g.info.id.clone());
        let notes = match (decided.gpu, self.gpus.get()) {
            (Some(gpu), Some(gpus)) => gpus.note_of(gpu),
            _ => Vec::new(),
        };
        Explanation {
            case: format!("{}/{}/{}/{}", case.op, case.dtype, case.shape_text(), case.attr_text()),
            family: decided.family,
            place: if decided.gpu.is_some() { Place::Gpu } else { Place::Cpu },
            device,
            why: decided.why.clone(),
            work: decided.work,
            features: op.features(case),
            unit: op.unit.name(),
            entry: decided.entry.cloned(),
            assumed: decided.assumed,
            notes,
        }
    }

    /// The forced device must be there; asked when the engine is built, so that the mistake shows at once.
    pub(super) fn check_forced(&self) -> Result<()> {
        let Placement::ForceGpu(name) = &self.placement else { return Ok(()) };
        if self.env.disable_gpu {
            return Err(Error::new(Code::DeviceDisabled, format!("'{name}' was asked for")));
        }
        let gpus = self.gpus();
        if gpus.all.iter().any(|g| g.called(name)) {
            return Ok(());
        }
        let known: Vec<_> = gpus.all.iter().map(|g| g.info.id.as_str()).collect();
        let why = if known.is_empty() { gpus.absence() } else { format!("there are: {}", known.join(" ")) };
        Err(Error::new(Code::DeviceMissing, format!("no device '{name}'; {why}")))
    }
}
