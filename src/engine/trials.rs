//! Which kernels computed right on which device: verdicts, kept for the next program that asks.
//!
//! One file for each device, driver, compiler and version of gpuctl below `trials/` in the user's cache folder. It decides
//! whether code is trusted, so folder and files are their owner's alone, and what somebody else could have written is not read.
//! What is not a whole, sound file is none, and is written anew. Nothing that goes wrong with a file is an error of the caller:
//! then verdicts last as long as the program.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::base::{Code, DType, DeviceInfo, Env, Error, rng};
use crate::kernel;
use crate::op::{self, case};

use super::{judge, private};

/// Version of the layout.
const LAYOUT: u32 = 1;
/// Largest file that is read or written, in bytes.
const LARGEST: u64 = 8 << 20;
/// Most verdicts of a device: a few for each of some thousand kernels.
const MOST: usize = 8192;
/// Most files.
const FILES: usize = 64;
/// Longest text of a row, in characters.
const LONGEST: usize = 500;
/// Bytes beyond which no operand of a kept case is: what a file names is only looked at if it is small.
const LARGE_CASE: u64 = 1 << 34;
/// How often and how long to wait for a process that is writing; after that both write, and the later one stays.
const WAITS: (u32, Duration) = (50, Duration::from_millis(2));
/// Age from which a file that was never finished is removed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// What a verdict is about: a text as a device's compiler gets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Op.
    pub op: String,
    /// Kernel variant.
    pub variant: String,
    /// Dtype of the case.
    pub dtype: DType,
    /// Hash of the text with all its defines.
    pub text: u64,
}

/// What a trial said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This case is right.
    Passed {
        /// Its name.
        case: String,
    },
    /// This case is wrong.
    Wrong {
        /// Its name.
        case: String,
        /// The first wrong element with its values, or what else went wrong.
        found: String,
    },
    /// It could not be judged.
    Unjudged {
        /// Why.
        why: String,
    },
}

/// A verdict and when it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// What a trial said.
    pub verdict: Verdict,
    /// Seconds since 1970 (UTC).
    pub when: u64,
}

/// A kernel that computes wrong on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kernel.
    pub program: Program,
    /// The case that shows it.
    pub case: String,
    /// The first wrong element with its values, or what else went wrong.
    pub found: String,
    /// Seconds since 1970 (UTC).
    pub when: u64,
}

impl Fault {
    /// The command that shows it again.
    pub fn rerun(&self, info: &DeviceInfo) -> String {
        format!("gpuctl verify --case '{}' --device {} --variant {}", self.case, info.id, self.program.variant)
    }

    /// The error of a call that would have used the kernel.
    pub fn error(&self, info: &DeviceInfo) -> Error {
        let Fault { program, case, found, .. } = self;
        let rerun = self.rerun(info);
        let why = format!("kernel {} computes wrong: {case}: {found}; rerun: {rerun}", program.variant);
        Error::new(Code::ResultWrong, why).op(&program.op).device(&info.id)
    }
}

/// What somebody found wrong on a device, for [`Trials::note`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The device's uid.
    pub uid: String,
    /// What the case that shows it was made of.
    pub programs: Vec<Program>,
    /// The case and what is wrong.
    pub verdict: Verdict,
}

type Book = HashMap<Program, Known>;

/// Verdicts on kernels, of this process and of those before it. Shared between threads.
#[derive(Debug, Default)]
pub struct Trials {
    folder: Option<PathBuf>,
    books: Mutex<HashMap<String, Book>>,
    trouble: Mutex<Option<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    gpuctl_trials: u32,
    gpuctl: String,
    uid: String,
    fingerprint: String,
    rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    op: String,
    variant: String,
    dtype: DType,
    text: u64,
    verdict: String,
    case: String,
    found: String,
    when: u64,
}

impl Row {
    fn of(program: &Program, known: &Known) -> Self {
        let (verdict, case, found) = match &known.verdict {
            Verdict::Passed { case } => ("passed", case.as_str(), ""),
            Verdict::Wrong { case, found } => ("wrong", case.as_str(), found.as_str()),
            Verdict::Unjudged { why } => ("unjudged", "", why.as_str()),
        };
        let cut = |text: &str| text.chars().take(LONGEST).collect();
        Row {
            op: program.op.clone(),
            variant: program.variant.clone(),
            dtype: program.dtype,
            text: program.text,
            verdict: verdict.into(),
            case: cut(case),
            found: cut(found),
            when: known.when,
        }
    }

    /// `None` if it is no row that this program writes.
    fn read(self) -> Option<(Program, Known)> {
        let long = |text: &String| text.chars().count() > LONGEST;
        if [&self.op, &self.variant, &self.case, &self.found].into_iter().any(long) {
            return None;
        }
        let verdict = match self.verdict.as_str() {
            "passed" => Verdict::Passed { case: self.case },
            "wrong" => Verdict::Wrong { case: self.case, found: self.found },
            "unjudged" => Verdict::Unjudged { why: self.found },
            _ => return None,
        };
        let program = Program { op: self.op, variant: self.variant, dtype: self.dtype, text: self.text };
        Some((program, Known { verdict, when: self.when }))
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970 (UTC).
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// What tells this program from another build of the same version: its file's length and time.
pub(super) fn this_build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| {
        let file = std::env::current_exe().and_then(std::fs::metadata);
        let told = file.and_then(|m| Ok((m.len(), m.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default())));
        told.map_or_else(|_| "?".into(), |(bytes, time)| format!("{bytes} {}", time.as_nanos()))
    })
}

/// The device's fingerprint and the compiler that is no part of its driver: what wrong or right code comes from.
fn made_by(info: &DeviceInfo) -> String {
    let compiler = info.compiler().map_or_else(String::new, |c| format!(" | {c}"));
    info.fingerprint() + &compiler
}

fn name_of(info: &DeviceInfo) -> String {
    let key = format!("{LAYOUT} | {} | {} | {}", env!("CARGO_PKG_VERSION"), info.uid, made_by(info));
    format!("{:016x}.json", rng::fnv1a64(key.as_bytes()))
}

impl Trials {
    /// Those of the user's cache folder; of this process alone if there is none.
    pub fn of(env: &Env) -> Self {
        Trials { folder: env.cache_dir.as_ref().map(|d| d.join("trials")), ..Trials::default() }
    }

    /// What is known of a kernel on this device and driver.
    pub fn ask(&self, info: &DeviceInfo, program: &Program) -> Option<Known> {
        self.with(info, |book| book.get(program).cloned())
    }

    /// Kernels of a device that computed wrong when they were last tried, and are built of the same text today. Oldest first.
    pub fn wrong(&self, info: &DeviceInfo) -> Vec<Fault> {
        let fault = |(program, known): (&Program, &Known)| match &known.verdict {
            Verdict::Wrong { case, found } => {
                let (case, found) = (case.clone(), found.clone());
                Some(Fault { program: program.clone(), case, found, when: known.when })
            }
            _ => None,
        };
        let mut all: Vec<Fault> = self.with(info, |book| book.iter().filter_map(fault).collect());
        all.retain(|f| is_current(f, info));
        all.sort_by(|a, b| (a.when, &a.case, a.program.text).cmp(&(b.when, &b.case, b.program.text)));
        all
    }

    /// Number of texts that computed right on a device.
    pub fn passed(&self, info: &DeviceInfo) -> u64 {
        let right = |k: &&Known| matches!(k.verdict, Verdict::Passed { .. });
        self.with(info, |book| book.values().filter(right).count() as u64)
    }

    /// Keeps verdicts, in the place of earlier ones on the same kernels; on the disk, too, if that can be done.
    pub fn note(&self, info: &DeviceInfo, verdicts: &[(Program, Verdict)]) {
        let when = now();
        let news: Book = verdicts.iter().map(|(p, v)| (p.clone(), Known { verdict: v.clone(), when })).collect();
        self.with(info, |book| book.extend(news.clone()));
        let Some(folder) = self.folder.as_deref().filter(|_| !news.is_empty()) else { return };
        if let Err(why) = self.write(folder, info, news) {
            self.tell(format!("verdicts on kernels are not kept: {why}"));
        }
    }

    /// What stood in the way of reading or keeping verdicts, if anything did.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    fn tell(&self, text: String) {
        let mut told = lock(&self.trouble);
        if told.is_none() {
            log::warn!("{text}");
            *told = Some(text);
        }
    }

    /// The device's verdicts, read when first asked for.
    fn with<T>(&self, info: &DeviceInfo, f: impl FnOnce(&mut Book) -> T) -> T {
        let name = name_of(info);
        let mut books = lock(&self.books);
        let book = match books.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let read = self.folder.as_deref().map(|folder| read(folder, new.key(), info));
                new.insert(read.map_or_else(Book::default, |read| {
                    read.unwrap_or_else(|why| {
                        self.tell(format!("kept verdicts on kernels are not used: {why}"));
                        Book::default()
                    })
                }))
            }
        };
        f(book)
    }

    /// Joins verdicts with those on the disk. A reader meets the file before or after, never half of it.
    fn write(&self, folder: &Path, info: &DeviceInfo, news: Book) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
        private::make_folder(folder)?;
        let _held = hold(folder);
        let name = name_of(info);
        // A file that may not be read is replaced as well.
        let mut book = read(folder, &name, info).unwrap_or_default();
        book.extend(news);
        let text = page(info, book)?;
        let path = folder.join(&name);
        if !path.exists() {
            prune(folder);
        }
        private::replace(folder, &name, text.as_bytes()).map_err(failed)
    }
}

/// Whether a kept fault is of a text that this program would build: another build may have repaired the kernel.
fn is_current(fault: &Fault, info: &DeviceInfo) -> bool {
    let Ok(case) = case::parse(&fault.case) else { return false };
    let Ok(op) = op::find(case.op) else { return false };
    let small = op.total_bytes(&case).is_some_and(|b| b < LARGE_CASE) && case.dims.iter().all(|(_, n)| *n < LARGE_CASE);
    if !small || case.op != fault.program.op || case.dtype != fault.program.dtype {
        return false;
    }
    let choice = kernel::choose(op.kernels, &case, info, Some(&fault.program.variant));
    let programs = choice.and_then(|c| judge::programs(op, &case, &c, info));
    programs.is_ok_and(|all| all.contains(&fault.program))
}

/// A page's text: faults and what is newest, as far as they fit.
fn page(info: &DeviceInfo, book: Book) -> Result<String, String> {
    let mut rows: Vec<Row> = book.iter().map(|(p, k)| Row::of(p, k)).collect();
    rows.sort_by_key(|r| (r.verdict != "wrong", std::cmp::Reverse(r.when), r.op.clone(), r.text));
    rows.truncate(MOST);
    let mut page = Page {
        gpuctl_trials: LAYOUT,
        gpuctl: env!("CARGO_PKG_VERSION").into(),
        uid: info.uid.clone(),
        fingerprint: made_by(info),
        rows,
    };
    loop {
        let text = serde_json::to_string(&page).map_err(|e| e.to_string())? + "\n";
        if text.len() as u64 <= LARGEST || page.rows.is_empty() {
            return Ok(text);
        }
        page.rows.truncate(page.rows.len() / 2);
    }
}

/// The verdicts of a file; none if it is not there or is no whole page of this device. Errors: it may not be trusted.
fn read(folder: &Path, name: &str, info: &DeviceInfo) -> Result<Book, String> {
    match std::fs::symlink_metadata(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Book::default()),
        _ => private::own_folder(folder)?,
    }
    let Some((file, meta)) = private::open(&folder.join(name))? else { return Ok(Book::default()) };
    if meta.len() > LARGEST {
        return Ok(Book::default());
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    if file.take(LARGEST + 1).read_to_end(&mut bytes).is_err() || bytes.len() as u64 > LARGEST {
        return Ok(Book::default());
    }
    Ok(sound(&bytes, info).unwrap_or_default())
}

/// The verdicts of a page, if all of it is as this program writes it.
fn sound(bytes: &[u8], info: &DeviceInfo) -> Option<Book> {
    let page: Page = serde_json::from_slice(bytes).ok()?;
    let ours = page.gpuctl_trials == LAYOUT && page.gpuctl == env!("CARGO_PKG_VERSION");
    if !ours || page.uid != info.uid || page.fingerprint != made_by(info) || page.rows.len() > MOST {
        return None;
    }
    page.rows.into_iter().map(Row::read).collect()
}

/// Keeps other processes from writing meanwhile, if they are soon done.
fn hold(folder: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(folder.join("lock")).ok()?;
    for _ in 0..WAITS.0 {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(WAITS.1),
            Err(std::fs::TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// Removes the oldest files if there are too many, and what was never finished.
fn prune(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut pages = Vec::new();
    for path in entries.flatten().map(|e| e.path()) {
        let Ok(changed) = std::fs::symlink_metadata(&path).and_then(|m| m.modified()) else { continue };
        match path.extension().and_then(|e| e.to_str()) {
            Some("json") => pages.push((changed, path)),
            Some(private::PART) if changed.elapsed().is_ok_and(|age| age > ABANDONED) => {
                let _ = std::fs::remove_file(path);
            }
            _ => {}
        }
    }
    pages.sort_unstable();
    for (_, path) in pages.iter().take((pages.len() + 1).saturating_sub(FILES)) {
        let _ = std::fs::remove_file(path);
    }
}
