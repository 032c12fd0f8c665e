//! A library's functions, called with integers of its size and slices of the sizes that it is told.
//!
//! Invariant: a pointer is called with the integers that [`int_bits`] found, never with those that a name promises.

// Every call into the library is here; each block says what makes it sound.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use libloading::Library;

use crate::base::text::printable;
use crate::base::{Code, Error, Result};
use crate::kernel::cpu::blas::{Gemm, Gemv};

const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

type GemmFn<T, I> = unsafe extern "C" fn(c_int, c_int, c_int, I, I, I, T, *const T, I, *const T, I, T, *mut T, I);
type GemvFn<T, I> = unsafe extern "C" fn(c_int, c_int, I, I, T, *const T, I, *const T, I, T, *mut T, I);
type DotFn<T, I> = unsafe extern "C" fn(I, *const T, I, *const T, I) -> T;
type Nrm2Fn<T, I> = unsafe extern "C" fn(I, *const T, I) -> T;
type AxpyFn<T, I> = unsafe extern "C" fn(I, T, *const T, I, *mut T, I);

/// What a library puts around the names of its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Naming {
    /// Before.
    pub(super) prefix: &'static str,
    /// Behind.
    pub(super) suffix: &'static str,
}

/// The usual names; those of OpenBLAS with long integers beside another; those of the copies that NumPy and SciPy bring.
pub(super) const NAMINGS: [Naming; 5] = [
    Naming { prefix: "", suffix: "" },
    Naming { prefix: "", suffix: "64_" },
    Naming { prefix: "scipy_", suffix: "" },
    Naming { prefix: "scipy_", suffix: "64_" },
    Naming { prefix: "", suffix: "_64" },
];

impl Naming {
    pub(super) fn of(self, name: &str) -> String {
        format!("{}{name}{}", self.prefix, self.suffix)
    }
}

/// The naming under which a library has the products.
pub(super) fn naming(library: &Library) -> Option<Naming> {
    NAMINGS.into_iter().find(|n| has(library, &n.of("cblas_sgemm")) && has(library, &n.of("cblas_dgemm")))
}

pub(super) fn has(library: &Library, name: &str) -> bool {
    // SAFETY: only whether there is such a symbol is asked; nothing is called or read.
    unsafe { library.get::<unsafe extern "C" fn()>(name).is_ok() }
}

/// A function by its name.
///
/// # Safety
/// If there is a symbol of that name, it is a function of the type `F`.
unsafe fn get<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: the caller says what the symbol is. The library is never closed, so the pointer stays valid.
    let found = unsafe { library.get::<F>(name) };
    found.map(|s| *s).map_err(|_| Error::new(Code::BadArgument, format!("it has no {name}")))
}

/// Opens a library, never to be closed: its threads live as long as the process.
pub(super) fn open(path: &std::path::Path) -> std::result::Result<&'static Library, String> {
    // SAFETY: the user names a library to be run within this process, or asks for one that the system has installed under a
    // known name; its initialisers are run, as those of every library that a program is linked to.
    let library = unsafe { Library::new(path) }.map_err(|e| {
        // The loader's own words, where there are any.
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        printable(&why).into_owned()
    })?;
    Ok(Box::leak(Box::new(library)))
}

/// Where the lower half of a 64-bit argument is what a function sees that takes 32 bits.
const TELLABLE: bool = cfg!(all(
    target_pointer_width = "64",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
));

/// Bits of the library's integers: 32 or 64, by a dot product of a length whose lower half is 2 and which as a whole is negative,
/// so that no element is read and the result is 0.
///
/// Errors: `BadArgument` for a library without `cblas_sdot`, one that computes neither, and processors on which that cannot be told.
pub(super) fn int_bits(library: &Library, naming: Naming) -> Result<u32> {
    if !TELLABLE {
        let why = "the size of a BLAS's integers cannot be told on this processor";
        return Err(Error::new(Code::FeatureUnsupported, why));
    }
    let name = naming.of("cblas_sdot");
    // SAFETY: CBLAS declares it so, but for the size of its integers; see below.
    let dot = unsafe { get::<DotFn<f32, i64>>(library, &name) }?;
    let (x, y) = ([3f32, 5.0, 100.0, 100.0], [7f32, 11.0, 100.0, 100.0]);
    let call = |n: i64| {
        // SAFETY: all integer arguments are passed in registers or slots of 64 bits on the processors of `TELLABLE`, of which a
        // callee with integers of 32 bits uses the lower half, by their calling conventions; so it sees 2 elements and strides
        // of 1 in either case, and one with 64 bits sees 2 elements or a negative number, for which it reads none.
        unsafe { dot(n, x.as_ptr(), 1, y.as_ptr(), 1) }
    };
    let of_two = 3.0 * 7.0 + 5.0 * 11.0;
    match (call(2), call(2 - (1 << 32))) {
        (plain, _) if plain != of_two => {
            Err(Error::new(Code::ResultWrong, format!("{name} of two elements is {plain}, {of_two} is right")))
        }
        (_, short) if short == of_two => Ok(32),
        (_, 0.0) => Ok(64),
        (_, other) => Err(Error::new(
            Code::BadArgument,
            format!("{name} of a negative length is {other}: its integers are unknown"),
        )),
    }
}

/// Integers that a library may take.
pub(super) trait Int: TryFrom<usize> + Copy {
    const ONE: Self;
}

impl Int for i32 {
    const ONE: Self = 1;
}

impl Int for i64 {
    const ONE: Self = 1;
}

/// The functions of one type.
pub(super) struct Set<T, I> {
    gemm: GemmFn<T, I>,
    gemv: GemvFn<T, I>,
    dot: DotFn<T, I>,
    nrm2: Nrm2Fn<T, I>,
    axpy: AxpyFn<T, I>,
}

/// Refuses slices that do not hold what the sizes say.
fn holds(fits: bool) -> Result<()> {
    if fits { Ok(()) } else { Err(Error::new(Code::BufferBounds, "an operand is shorter than its sizes say")) }
}

fn int<I: TryFrom<usize>>(v: usize) -> Result<I> {
    I::try_from(v).map_err(|_| Error::new(Code::SizeOverflow, format!("{v} does not fit the library's integers")))
}

const fn trans(yes: bool) -> c_int {
    if yes { TRANS } else { NO_TRANS }
}

impl<T: Copy, I: Int> Set<T, I> {
    /// The functions of a type, by its letter.
    ///
    /// # Safety
    /// The library's integers are `I`, and `letter` is that of `T`: s for f32, d for f64.
    pub(super) unsafe fn of(library: &Library, naming: Naming, letter: char) -> Result<Self> {
        let name = |routine: &str| naming.of(&format!("cblas_{letter}{routine}"));
        // SAFETY: the names are CBLAS's, which declares the functions so; the caller says which integers and numbers they take.
        unsafe {
            Ok(Set {
                gemm: get(library, &name("gemm"))?,
                gemv: get(library, &name("gemv"))?,
                dot: get(library, &name("dot"))?,
                nrm2: get(library, &name("nrm2"))?,
                axpy: get(library, &name("axpy"))?,
            })
        }
    }

    pub(super) fn gemm(&self, p: Gemm<'_, T>) -> Result<()> {
        let of = |rows: usize, columns: usize| rows.checked_mul(columns);
        let fits = |have: usize, rows, columns| of(rows, columns).is_some_and(|n| n <= have);
        holds(fits(p.a.len(), p.m, p.k) && fits(p.b.len(), p.k, p.n) && fits(p.c.len(), p.m, p.n))?;
        holds(p.m > 0 && p.n > 0 && p.k > 0)?;
        let (m, n, k) = (int::<I>(p.m)?, int::<I>(p.n)?, int::<I>(p.k)?);
        let lda = if p.trans_a { m } else { k };
        let ldb = if p.trans_b { k } else { n };
        let (a, b, c) = (p.a.as_ptr(), p.b.as_ptr(), p.c.as_mut_ptr());
        // SAFETY: A, B and C hold rows of the lengths given as their leading dimensions, as many as the sizes say (checked
        // above), and C overlaps neither, being borrowed alone. All sizes are positive, so nothing is refused by `xerbla`.
        unsafe {
            (self.gemm)(ROW_MAJOR, trans(p.trans_a), trans(p.trans_b), m, n, k, p.alpha, a, lda, b, ldb, p.beta, c, n);
        }
        Ok(())
    }

    pub(super) fn gemv(&self, p: Gemv<'_, T>) -> Result<()> {
        let fits = p.m.checked_mul(p.n).is_some_and(|n| n <= p.a.len());
        holds(fits && p.n <= p.x.len() && p.m <= p.y.len() && p.m > 0 && p.n > 0)?;
        let (m, n) = (int::<I>(p.m)?, int::<I>(p.n)?);
        // As A is stored.
        let (rows, columns) = if p.trans { (n, m) } else { (m, n) };
        let (a, x, y) = (p.a.as_ptr(), p.x.as_ptr(), p.y.as_mut_ptr());
        // SAFETY: A holds `rows` rows of `columns` elements, x n and y m elements (checked above); y is borrowed alone.
        unsafe {
            (self.gemv)(ROW_MAJOR, trans(p.trans), rows, columns, p.alpha, a, columns, x, I::ONE, p.beta, y, I::ONE);
        }
        Ok(())
    }

    pub(super) fn dot(&self, a: &[T], b: &[T]) -> Result<T> {
        holds(a.len() == b.len())?;
        let n = int::<I>(a.len())?;
        // SAFETY: both hold n elements.
        Ok(unsafe { (self.dot)(n, a.as_ptr(), I::ONE, b.as_ptr(), I::ONE) })
    }

    pub(super) fn nrm2(&self, x: &[T]) -> Result<T> {
        let n = int::<I>(x.len())?;
        // SAFETY: x holds n elements.
        Ok(unsafe { (self.nrm2)(n, x.as_ptr(), I::ONE) })
    }

    pub(super) fn axpy(&self, alpha: T, x: &[T], y: &mut [T]) -> Result<()> {
        holds(x.len() == y.len())?;
        let n = int::<I>(x.len())?;
        // SAFETY: both hold n elements, and y is borrowed alone.
        unsafe { (self.axpy)(n, alpha, x.as_ptr(), I::ONE, y.as_mut_ptr(), I::ONE) };
        Ok(())
    }
}

/// The functions of both types, by the size of the library's integers.
pub(super) enum Calls {
    Narrow(Set<f32, i32>, Set<f64, i32>),
    Wide(Set<f32, i64>, Set<f64, i64>),
}

impl Calls {
    /// Errors: `BadArgument` for a function that is missing, and those of [`int_bits`].
    pub(super) fn of(library: &Library, naming: Naming) -> Result<(Calls, u32)> {
        let bits = int_bits(library, naming)?;
        // SAFETY: the integers are those that were just found out, and the letters those of the types.
        let calls = unsafe {
            if bits == 32 {
                Calls::Narrow(Set::of(library, naming, 's')?, Set::of(library, naming, 'd')?)
            } else {
                Calls::Wide(Set::of(library, naming, 's')?, Set::of(library, naming, 'd')?)
            }
        };
        Ok((calls, bits))
    }
}

/// What a function without arguments says; empty if there is none.
pub(super) fn word(library: &Library, name: &str) -> String {
    // SAFETY: callers name functions that their libraries declare so: OpenBLAS's and BLIS's words about themselves.
    let Ok(ask) = (unsafe { get::<unsafe extern "C" fn() -> *const c_char>(library, name) }) else {
        return String::new();
    };
    // SAFETY: it takes nothing, and gives a string that lives as long as the library, or none.
    text(unsafe { ask() })
}

/// Longest text that is taken from a library.
const LONGEST: usize = 200;

fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: not null, and all that libraries hand out here ends with a zero byte.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
    let one_line: String =
        words.trim().chars().take(LONGEST).map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    printable(&one_line).into_owned()
}

/// BLIS's word for the processors that its kernels are written for.
pub(super) fn blis_core(library: &Library) -> String {
    // SAFETY: BLIS declares them so; an enumeration of C is an int.
    let functions = unsafe {
        let id = get::<unsafe extern "C" fn() -> c_int>(library, "bli_arch_query_id");
        let name = get::<unsafe extern "C" fn(c_int) -> *const c_char>(library, "bli_arch_string");
        id.and_then(|id| Ok((id, name?)))
    };
    let Ok((id, name)) = functions else { return String::new() };
    // SAFETY: one takes nothing, the other what the first gave.
    text(unsafe { name(id()) })
}

/// What MKL says of itself.
#[repr(C)]
struct MklVersion {
    major: c_int,
    minor: c_int,
    update: c_int,
    status: *const c_char,
    build: *const c_char,
    processor: *const c_char,
    platform: *const c_char,
}

/// MKL's version, and the processors that its kernels are chosen for, in its own words.
pub(super) fn mkl_version(library: &Library) -> (String, String) {
    // SAFETY: MKL declares it so.
    let Ok(ask) = (unsafe { get::<unsafe extern "C" fn(*mut MklVersion)>(library, "MKL_Get_Version") }) else {
        return Default::default();
    };
    let none = std::ptr::null();
    let mut v =
        MklVersion { major: 0, minor: 0, update: 0, status: none, build: none, processor: none, platform: none };
    // SAFETY: it fills in the structure, with strings that live as long as the library.
    unsafe { ask(&mut v) };
    let update = if v.update == 0 { String::new() } else { format!(".{}", v.update) };
    (format!("{}.{}{update}", v.major, v.minor), text(v.processor))
}

/// A setting by a number: `MKL_Set_Interface_Layer` and the like. `None` if there is no such function.
pub(super) fn choose(library: &Library, name: &str, number: c_int) -> Option<c_int> {
    // SAFETY: callers name functions that take a number and give one.
    let set = unsafe { get::<unsafe extern "C" fn(c_int) -> c_int>(library, name) }.ok()?;
    // SAFETY: as above; numbers that it does not know are refused by it.
    Some(unsafe { set(number) })
}

/// A number that a function without arguments gives; `None` if there is no such function.
pub(super) fn count(library: &Library, name: &str) -> Option<c_int> {
    // SAFETY: callers name functions that are declared so.
    let ask = unsafe { get::<unsafe extern "C" fn() -> c_int>(library, name) }.ok()?;
    // SAFETY: it takes nothing.
    Some(unsafe { ask() })
}

/// How a library is told its number of threads, and asked for it.
#[derive(Clone, Copy)]
pub(super) struct Threads {
    set: Option<SetThreads>,
    get: Option<GetThreads>,
}

#[derive(Clone, Copy)]
enum SetThreads {
    Int(unsafe extern "C" fn(c_int)),
    Long(unsafe extern "C" fn(i64)),
}

#[derive(Clone, Copy)]
enum GetThreads {
    Int(unsafe extern "C" fn() -> c_int),
    Long(unsafe extern "C" fn() -> i64),
}

impl Threads {
    /// Nothing can be told or asked.
    pub(super) const NONE: Threads = Threads { set: None, get: None };

    /// Functions that take and give an int: OpenBLAS's and MKL's.
    pub(super) fn ints(library: &Library, set: &str, get_name: &str) -> Self {
        // SAFETY: callers name functions that are declared so.
        unsafe {
            Threads {
                set: get(library, set).ok().map(SetThreads::Int),
                get: get(library, get_name).ok().map(GetThreads::Int),
            }
        }
    }

    /// Functions that take and give BLIS's `dim_t`: 64 bits wide.
    pub(super) fn longs(library: &Library, set: &str, get_name: &str) -> Self {
        // SAFETY: as above.
        unsafe {
            Threads {
                set: get(library, set).ok().map(SetThreads::Long),
                get: get(library, get_name).ok().map(GetThreads::Long),
            }
        }
    }

    /// Tells it. The caller sees to it that no call of the library is under way.
    pub(super) fn tell(self, threads: u32) {
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: the functions take a positive number; nothing of the library is under way.
        unsafe {
            match self.set {
                Some(SetThreads::Int(set)) => set(threads),
                Some(SetThreads::Long(set)) => set(threads.into()),
                None => {}
            }
        }
    }

    /// What it says, if it can be asked.
    pub(super) fn ask(self) -> Option<u32> {
        // SAFETY: the functions take nothing and give a number.
        let said = unsafe {
            match self.get? {
                GetThreads::Int(get) => i64::from(get()),
                GetThreads::Long(get) => get(),
            }
        };
        // BLIS says -1 where it was told nothing and runs alone.
        u32::try_from(said.max(1)).ok()
    }
}
