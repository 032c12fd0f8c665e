//! What only the operating system can tell or do: affinity, memory of this process, its open files.
//!
//! Linux is what is tested; elsewhere each function says that it does not know (`None`).

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name beside a file for what will be renamed to it: the file's, a word that nobody else has, an ending. The number of the
/// process is not enough: containers that share a folder often all have the number 1.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{time:x}-{number}.{ending}", std::process::id()));
    path.with_file_name(name)
}

/// Makes a file under a name of [`beside`] that was not there before, fills it and renames it to `path`. What goes wrong leaves
/// neither half a file nor touches what another made.
pub fn replace(
    path: &Path,
    ending: &str,
    options: &mut OpenOptions,
    fill: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    replace_by(&beside(path, ending), path, options, fill)
}

fn replace_by(
    part: &Path,
    path: &Path,
    options: &mut OpenOptions,
    fill: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut file = options.write(true).create_new(true).open(part)?;
    let done = fill(&mut file).and_then(|()| std::fs::rename(part, path));
    done.inspect_err(|_| {
        // Best effort: the first error is the one to report.
        let _ = std::fs::remove_file(part);
    })
}

/// CPUs on which this process may run (affinity and cpuset respected), in ascending order; empty if unknown. It is the
/// main thread that is asked: threads that we pinned ourselves do not count.
pub fn allowed_cpus() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: getpid takes nothing and cannot fail; the id of a process is that of its main thread.
        affinity(unsafe { libc::getpid() })
    }
    #[cfg(not(target_os = "linux"))]
    Vec::new()
}

/// CPUs of one thread; 0 names the calling one.
#[cfg(target_os = "linux")]
fn affinity(thread: i32) -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid, writable cpu_set_t of the size given.
    let rc = unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if rc != 0 {
        return Vec::new();
    }
    let limit = libc::CPU_SETSIZE as usize;
    // SAFETY: the index is below CPU_SETSIZE and `set` is initialised.
    (0..limit).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

#[allow(clippy::needless_return, reason = "each system has a block of its own")]
/// Pins the calling thread, which the caller must have created, to one CPU. True on success.
pub fn pin_current_thread(cpu: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        if cpu >= libc::CPU_SETSIZE as usize {
            return false;
        }
        // SAFETY: an all-zero cpu_set_t is a valid empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the index was checked against CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        // SAFETY: `set` is a valid cpu_set_t of the size given; 0 names the calling thread.
        return unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } == 0;
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = cpu;
        false
    }
}

#[allow(clippy::needless_return, reason = "each system has a block of its own")]
/// Gives the calling thread, which the caller must have created, the priority of idling: it runs only where nothing else of this
/// machine wants to, and gives way at once. True on success.
pub fn idle_priority() -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: an all-zero sched_param is a valid one: this policy has no priorities but 0.
        let none: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: `none` lives through the call; 0 names the calling thread.
        return unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) } == 0;
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Asks for large pages for memory that is about to be filled: with small ones a processor that streams through it spends much
/// of its time on looking up where they lie. Nothing but the speed depends on the answer.
pub fn prefer_large_pages<T>(memory: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let from = memory.as_ptr().addr().next_multiple_of(PAGE);
        let end = memory.as_ptr().addr() + size_of_val(memory);
        if from < end {
            // SAFETY: the range lies within `memory`, begins at a page, and MADV_HUGEPAGE changes no contents.
            unsafe { libc::madvise(memory.as_mut_ptr().with_addr(from).cast(), end - from, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Total and available memory of the host in bytes, the cgroup's limit respected.
pub fn memory() -> Option<(u64, u64)> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let (total, available) = (system.total_memory(), system.available_memory());
    Some(match system.cgroup_limits() {
        Some(limits) if limits.total_memory > 0 && limits.total_memory < total => {
            (limits.total_memory, limits.free_memory.min(available))
        }
        _ => (total, available),
    })
}

/// Processes that wanted to run in the last minute, on average, if the system tells.
pub fn load() -> Option<f64> {
    sysinfo::System::load_average().ok().map(|l| l.one)
}

/// Model name of the processor with its family and model numbers; the architecture where that is unknown.
pub fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|l| l.split(':').next().is_some_and(|key| key.trim() == name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_string())
    };
    match (field("model name"), field("cpu family"), field("model")) {
        (Some(name), Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        (Some(name), ..) => name,
        _ => std::env::consts::ARCH.to_string(),
    }
}

/// Size of the first processor's last cache (Linux: `/sys/devices/system/cpu/cpu0/cache`).
pub fn last_cache_bytes() -> Option<u64> {
    let entry = |i: u32| {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{i}");
        let text = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).ok();
        Some((text("level")?.trim().parse::<u32>().ok()?, cache_size(text("size")?.trim())?))
    };
    (0..8).filter_map(entry).max().map(|(_, bytes)| bytes)
}

/// `32768K`, `4M` or plain bytes.
fn cache_size(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_shl(shift).filter(|b| *b > 0)
}

/// What drivers of GPUs put into `/dev` (Linux), without asking them: `nvidia0`, `dri/renderD128`, `kfd`, `dxg`. Sorted.
pub fn gpu_nodes() -> Vec<String> {
    gpu_nodes_in(std::path::Path::new("/dev"))
}

fn gpu_nodes_in(dev: &std::path::Path) -> Vec<String> {
    let numbered = |name: &str, word: &str| {
        name.strip_prefix(word).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let names = |folder: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).collect()
    };
    let mut nodes = names(dev);
    nodes.retain(|n| numbered(n, "nvidia") || n == "kfd" || n == "dxg");
    let dri = names(&dev.join("dri")).into_iter().filter(|n| numbered(n, "renderD"));
    nodes.extend(dri.map(|n| format!("dri/{n}")));
    nodes.sort();
    nodes
}

/// True for what writing to a terminal gives once that is closed.
pub fn is_hang_up(e: &std::io::Error) -> bool {
    #[cfg(unix)]
    {
        e.raw_os_error() == Some(libc::EIO)
    }
    #[cfg(not(unix))]
    {
        let _ = e;
        false
    }
}

/// Free bytes of the file system of a folder, as far as this user may fill it.
pub fn free_bytes(folder: &std::path::Path) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
        // SAFETY: all-zero bytes are a valid statvfs.
        let mut told: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: `path` ends with a zero and `told` is writable for its type.
        if unsafe { libc::statvfs(path.as_ptr(), &raw mut told) } != 0 {
            return None;
        }
        #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
        (told.f_bavail as u64).checked_mul(told.f_frsize as u64)
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

/// The kernel's log since the start of the machine, as far as its buffer goes back; the reason if it may not be read.
pub fn kernel_log() -> Result<String, String> {
    #[cfg(target_os = "linux")]
    {
        use std::io::Read;
        use std::os::unix::fs::OpenOptionsExt;
        // Without this flag reading would wait for the next line.
        let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
        let mut file =
            file.map_err(|e| format!("/dev/kmsg: {e}; root may read it, or all with kernel.dmesg_restrict=0"))?;
        let (mut log, mut line) = (String::new(), [0u8; 8192]);
        // Each call gives a line. The kernel writes while we read: that ends as well.
        for _ in 0..1_000_000 {
            match file.read(&mut line) {
                Ok(0) => break,
                Ok(n) => log.push_str(&String::from_utf8_lossy(&line[..n])),
                // Lines that were overwritten meanwhile.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(format!("/dev/kmsg: {e}")),
            }
        }
        Ok(log)
    }
    #[cfg(not(target_os = "linux"))]
    Err("read on Linux only".into())
}

/// Name and version of the operating system and its kernel.
pub fn os_name() -> String {
    let part = |v: Option<String>| v.unwrap_or_else(|| "?".into());
    format!(
        "{}, kernel {}",
        part(sysinfo::System::long_os_version().ok()),
        part(sysinfo::System::kernel_version().ok())
    )
}

/// Resident memory of this process in bytes (`/proc/self/statm`, field 2 times the page size).
pub fn rss_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_size()?)
}

fn page_size() -> Option<u64> {
    #[cfg(unix)]
    {
        // SAFETY: sysconf only reads its integer argument.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(size).ok()
    }
    #[cfg(not(unix))]
    None
}

/// Number of open file descriptors of this process.
pub fn open_fds() -> Option<u64> {
    // The folder handle itself is one of them.
    std::fs::read_dir("/proc/self/fd").ok().map(|d| (d.count() as u64).saturating_sub(1))
}

/// Number of threads of this process.
pub fn threads() -> Option<u64> {
    std::fs::read_dir("/proc/self/task").ok().map(|d| d.count() as u64)
}

#[allow(clippy::needless_return, reason = "each system has a block of its own")]
/// Asks the process `pid`, a child of ours, to end (SIGTERM). True if it was told.
pub fn terminate(pid: u32) -> bool {
    #[cfg(unix)]
    {
        let Ok(pid) = i32::try_from(pid) else { return false };
        // SAFETY: kill only takes integers; a positive pid names one process.
        return pid > 0 && unsafe { libc::kill(pid, libc::SIGTERM) } == 0;
    }
    #[cfg(not(unix))]
    {
        let _ = pid;
        false
    }
}

/// Marks this process as one that may be ended at any moment: it ends with the thread that started it, so that a driver
/// that hangs outlives nobody, and its crash leaves no core file. Nothing happens where the system cannot do that.
pub fn expendable() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: with this option prctl only takes a signal's number.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) };
        // One byte: too little for a file, and the value at which Linux does not start a program that takes the dump either.
        let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: `none` is a valid rlimit that lives through the call.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    }
}

/// Sets a variable of this process's environment, for libraries that it opens later, unless it is set already. Only to be called
/// while there is one thread. Nothing happens where the system cannot do that.
pub fn default_variable(name: &str, value: &str) {
    #[cfg(unix)]
    if let (Ok(name), Ok(value)) = (std::ffi::CString::new(name), std::ffi::CString::new(value)) {
        // SAFETY: both are strings that end with a zero byte and live through the call, which copies them; there is no other
        // thread that might read the environment meanwhile, says the caller.
        unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 0) };
    }
    #[cfg(not(unix))]
    let _ = (name, value);
}

/// Sets or removes a variable of this process's environment, for drivers that it loads later and processes that it starts. Only to
/// be called while no foreign code runs in another thread: before the first driver is loaded.
pub fn set_variable(name: &str, value: Option<&std::ffi::OsStr>) {
    match value {
        // SAFETY: threads of ours read the environment through the standard library alone, which keeps them apart; there is no
        // other code that might read it meanwhile, says the caller.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(name) },
    }
}

/// Files that this process has mapped as code, without those that are gone; none where the system does not tell.
pub fn mapped_files() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let code = |line: &str| {
        let mut parts = line.splitn(6, ' ').map(str::trim);
        let (rights, path) = (parts.nth(1)?, parts.nth(3)?);
        (rights.contains('x') && path.starts_with('/') && !path.ends_with(" (deleted)")).then(|| path.to_string())
    };
    let mut all: Vec<String> = maps.lines().filter_map(code).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What tells this start of the system from others; empty where it does not tell.
pub fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| String::new(), |t| t.trim().to_string())
}

/// The user whose rights this process has; `None` where files have no owner.
pub fn user_id() -> Option<u32> {
    #[cfg(unix)]
    {
        // SAFETY: geteuid takes nothing and cannot fail.
        Some(unsafe { libc::geteuid() })
    }
    #[cfg(not(unix))]
    None
}

/// Seconds of three clocks: monotonic without the time in which the machine slept, the same with it (where the system has
/// such a clock), and since 1970.
pub fn clocks() -> (f64, Option<f64>, f64) {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    #[cfg(target_os = "linux")]
    if let (Some(mono), Some(boot)) = (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_BOOTTIME)) {
        return (mono, Some(boot), wall);
    }
    (START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64(), None, wall)
}

#[cfg(target_os = "linux")]
fn clock(which: libc::clockid_t) -> Option<f64> {
    let mut told = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `told` is writable for its type.
    if unsafe { libc::clock_gettime(which, &raw mut told) } != 0 {
        return None;
    }
    Some(told.tv_sec as f64 + told.tv_nsec as f64 * 1e-9)
}

/// How a process ended, in words: `signal SIGSEGV`, `exit code 3`.
pub fn ending(status: std::process::ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let names = [
            (libc::SIGABRT, "SIGABRT"),
            (libc::SIGBUS, "SIGBUS"),
            (libc::SIGFPE, "SIGFPE"),
            (libc::SIGILL, "SIGILL"),
            (libc::SIGKILL, "SIGKILL"),
            (libc::SIGPIPE, "SIGPIPE"),
            (libc::SIGSEGV, "SIGSEGV"),
            (libc::SIGSYS, "SIGSYS"),
            (libc::SIGTERM, "SIGTERM"),
            (libc::SIGTRAP, "SIGTRAP"),
        ];
        let name = names.iter().find(|(number, _)| *number == signal);
        return name.map_or_else(|| format!("signal {signal}"), |(_, name)| format!("signal {name}"));
    }
    status.code().map_or_else(|| "an unknown end".into(), |code| format!("exit code {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn this_program_is_mapped_and_this_start_of_the_system_has_a_name() {
        let own = std::fs::canonicalize(std::env::current_exe().unwrap()).unwrap();
        let mapped = mapped_files();
        assert!(mapped.iter().any(|f| own == std::path::Path::new(f)), "{mapped:?}");
        assert!(mapped.iter().any(|f| f.contains("libc")) && mapped.iter().all(|f| f.starts_with('/')), "{mapped:?}");
        assert_eq!(boot().len(), 36);
    }

    #[test]
    fn nodes_of_gpus_and_of_nothing_else() {
        let dev = std::env::temp_dir().join(format!("gpuctl-dev-{}", std::process::id()));
        std::fs::create_dir_all(dev.join("dri")).unwrap();
        assert_eq!(gpu_nodes_in(&dev), Vec::<String>::new());
        for name in ["nvidia0", "nvidiactl", "nvidia-uvm", "kfd", "sda", "dri/renderD128", "dri/card0"] {
            std::fs::write(dev.join(name), "").unwrap();
        }
        assert_eq!(gpu_nodes_in(&dev), ["dri/renderD128", "kfd", "nvidia0"]);
        std::fs::remove_dir_all(&dev).unwrap();
        assert_eq!(gpu_nodes_in(&dev), Vec::<String>::new(), "no such folder");
    }

    /// As in two containers of one volume whose processes have one number: each writes its own file whole.
    #[test]
    fn files_that_are_being_written_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        let names: std::collections::HashSet<PathBuf> = (0..100).map(|_| beside(&path, "part")).collect();
        assert_eq!(names.len(), 100);
        // Another process counts from 0 as well: what is left to tell them apart is the time.
        let name = beside(&path, "part").file_name().unwrap().to_str().unwrap().to_string();
        let parts: Vec<&str> = name.strip_prefix("a.toml.").unwrap().split(['-', '.']).collect();
        assert!(parts.len() == 4 && u64::from_str_radix(parts[1], 16).unwrap() > 1 << 60, "{name}");
        // A name that is taken all the same is another's: neither written to nor removed.
        let taken = dir.path().join("taken");
        std::fs::write(&taken, "another's").unwrap();
        let write = |file: &mut File| std::io::Write::write_all(file, b"mine");
        let e = replace_by(&taken, &path, &mut OpenOptions::new(), write).unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&taken).unwrap(), "another's");
        assert!(!path.exists());
        replace(&path, "part", &mut OpenOptions::new(), write).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        // What cannot be filled leaves nothing, and the file as it was.
        let fails = |_: &mut File| Err(std::io::Error::other("full"));
        assert!(replace(&path, "part", &mut OpenOptions::new(), fails).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn sizes_of_caches_are_read() {
        assert_eq!(
            [cache_size("32768K"), cache_size("4M"), cache_size("512")],
            [Some(32 << 20), Some(4 << 20), Some(512)]
        );
        assert_eq!([cache_size(""), cache_size("K"), cache_size("3 apples"), cache_size("0K")], [None; 4]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells_everything() {
        let cpus = allowed_cpus();
        assert!(!cpus.is_empty());
        assert!(rss_bytes().unwrap() > 100_000);
        assert!(open_fds().unwrap() >= 3);
        assert!(threads().unwrap() >= 1);
        let before = cpus.len();
        let pinned = std::thread::spawn(move || pin_current_thread(cpus[0]) && affinity(0) == [cpus[0]]);
        assert!(pinned.join().unwrap());
        assert_eq!(allowed_cpus().len(), before, "our own pinning does not change what the process may use");
    }
}
