//! What an op is: one record each, read by bench, verify, calibrate, stress, the engine, help and docs.
//!
//! Invariant: nothing outside this folder names an op in code. Adding an op is adding a record to a family file.
//! Not here: running ops (`engine`), how kernels are written (`kernel`).

mod activation;
mod bias;
mod broadcast;
pub mod case;
mod cast;
mod conv;
mod dot;
mod elementwise;
pub mod expected;
mod flat;
mod freivalds;
pub mod limits;
mod matmul;
mod micro;
mod moments;
mod movement;
mod norm;
mod peak;
mod pool;
mod products;
mod reduce;
mod stream;
pub mod tolerance;

use crate::base::{
    Attr, AttrDecl, Attrs, Case, Code, Cost, DType, DeviceInfo, Error, Exact, Features, Fill, HostTensor, Lang,
    MOST_DIMS, Result,
};
use crate::kernel::Kernel;

use tolerance::Bound;
pub use tolerance::Tolerance;

/// Everything about one op. Built as a complete literal: a new reader of a new fact adds a field here, so that every
/// record must state it.
#[derive(Debug)]
pub struct OpDesc {
    /// Name in the CLI, TOML, JSON, tests.
    pub name: &'static str,
    /// One sentence with the formula.
    pub doc: &'static str,
    /// 1: needed for the tool's promises; 2: named feature; 3: breadth.
    pub tier: u8,
    /// Name of the ONNX operator that computes the same, if any.
    pub onnx: Option<&'static str>,
    /// Dimension names in their one order: `--shape`, JSON and case names follow it.
    pub dims: &'static [&'static str],
    /// Families of shapes with thresholds of their own. The first match wins; the first entry is what `--sizes` means.
    pub families: &'static [Family],
    /// Unit of sizes and thresholds.
    pub unit: Unit,
    /// Size of a case's work: elements, m·n·k, ... (see [`Unit`]).
    pub work: fn(&Case) -> u128,
    /// Attributes.
    pub attrs: &'static [AttrDecl],
    /// Dtypes of the operands.
    pub dtypes: &'static [DType],
    /// Operands in order: inputs, then outputs.
    pub operands: &'static [Operand],
    /// Shape of every operand of a case, in order; a typed error for impossible sizes or attributes.
    pub shapes: fn(&Case) -> Result<Vec<Vec<u64>>>,
    /// A user's call as a case: shapes of the given inputs and attributes -> sizes, attributes, shapes of the results.
    pub bind: fn(&[Vec<u64>], &Attrs) -> Result<Binding>,
    /// Least work of a call (requirements C2).
    pub cost: fn(&Case) -> Cost,
    /// The exact result: plain loops, shared with no kernel. One entry per output.
    pub oracle: fn(&Case, &[Vec<Exact>]) -> Vec<Reference>,
    /// The same for one element, for cases too large to compute whole; `None` where an element is no cheaper than all.
    pub element: Option<Element>,
    /// A check of a whole result that costs less than computing it again (Freivalds' for products), made beside the sample
    /// in cases too large to be computed whole.
    pub whole: Option<Whole>,
    /// How far a result may be from the oracle's.
    pub tolerance: Tolerance,
    /// Range of uniform data, per read operand.
    pub domain: &'static [Range],
    /// The gradient, or why there is none.
    pub grad: Grad,
    /// Kernels, the best of each language first.
    pub kernels: &'static [Kernel],
    /// Cases to verify.
    pub cases: fn(Tier) -> Vec<CaseSpec>,
    /// Classes of shapes and data that `cases(Tier::Full)` leaves out, each with its reason; all others must be there
    /// (tests/registry.rs).
    pub gaps: &'static [Gap],
}

/// One element of one output: the case, the read operands, the output's number among the written operands, the flat
/// index -> exact value and scale (see [`Reference`]).
pub type Element = fn(&Case, &[HostTensor], usize, u64) -> (Exact, f64);

/// A check of a whole result: the case, the read operands, the written ones, their bounds -> what is wrong, if anything.
/// `None` for small cases, whose elements are all judged.
pub type Whole = fn(&Case, &[HostTensor], &[HostTensor], &[Bound]) -> Option<String>;

/// A user's call in terms of the op.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Binding {
    /// Sizes in order of `dims`.
    pub dims: Vec<u64>,
    /// Attributes of the case; those that only shape the call are gone.
    pub attrs: Attrs,
    /// Shapes of the written operands as the user thinks of them. Empty: as `shapes` says.
    pub results: Vec<Vec<u64>>,
}

/// Something that the full tier leaves out, and why.
#[derive(Clone, Copy, Debug)]
pub enum Gap {
    /// A class of shapes.
    Shape(ShapeClass, &'static str),
    /// A class of data.
    Data(Fill, &'static str),
}

/// Classes of shapes that kernels get wrong for reasons of their own (requirements C5.7). A case belongs to a class by
/// its sizes ([`OpDesc::classes`]), not by a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShapeClass {
    /// An operand without elements.
    Empty,
    /// Every size is 1.
    One,
    /// Every size above 1 is prime, and one is at least 5.
    Prime,
    /// A size that is a multiple of 16.
    Tile,
    /// A size next to a multiple of 16.
    TileEdge,
    /// Two sizes that differ by a factor of at least 4.
    Uneven,
    /// A size above 2^19.
    LongRow,
    /// A launch of more than 65,535 groups on a GPU.
    ManyGroups,
}

impl ShapeClass {
    /// All classes.
    pub const ALL: [ShapeClass; 8] = [
        ShapeClass::Empty,
        ShapeClass::One,
        ShapeClass::Prime,
        ShapeClass::Tile,
        ShapeClass::TileEdge,
        ShapeClass::Uneven,
        ShapeClass::LongRow,
        ShapeClass::ManyGroups,
    ];
    /// The word used in counts.
    pub const fn name(self) -> &'static str {
        match self {
            ShapeClass::Empty => "empty",
            ShapeClass::One => "one",
            ShapeClass::Prime => "prime",
            ShapeClass::Tile => "tile",
            ShapeClass::TileEdge => "tile-edge",
            ShapeClass::Uneven => "uneven",
            ShapeClass::LongRow => "long-row",
            ShapeClass::ManyGroups => "many-groups",
        }
    }
}

/// The oracle's answer for one output.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Exact values in row-major order.
    pub values: Vec<Exact>,
    /// What the error is judged against besides the value: |x| for functions; for sums and products Σ|x| and |A||B| over
    /// the finite terms (infinite only if a product of finite numbers overflows); for softmax see its tolerance.
    pub scale: Vec<f64>,
}

/// A family of shapes.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Name in profiles.
    pub name: &'static str,
    /// What it contains.
    pub doc: &'static str,
    /// Membership.
    pub matches: fn(&Case) -> bool,
    /// Sizes (in order of `dims`) for a size in the op's unit.
    pub sweep: fn(u64) -> Vec<u64>,
}

/// Unit of `--sizes` and thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Elements of the largest operand.
    Elements,
    /// Equivalent dimension: cbrt(m·n·k), compared as m·n·k >= t³.
    Dim,
    /// Bytes moved.
    Bytes,
    /// Number of calls in one submission.
    Calls,
    /// Elements of the images, whatever a filter or window makes of them.
    InputElements,
    /// Floating-point operations.
    Flops,
}

impl Unit {
    /// The word used in profiles and records.
    pub fn name(self) -> &'static str {
        // Texts with one place in memory each, wherever this function is compiled into: `profile::Chooser` knows them by it.
        static WORDS: [&str; 6] = ["elements", "dim", "bytes", "calls", "input_elements", "flops"];
        WORDS[self as usize]
    }
    /// The work that corresponds to a size: the size itself, or its cube for `Dim`.
    pub fn work_of(self, size: u64) -> u128 {
        let s = u128::from(size);
        // 2^126 bounds s³ only below 2^42; beyond, every real problem is smaller than the size.
        if self == Unit::Dim { s.checked_pow(3).unwrap_or(u128::MAX) } else { s }
    }
    /// Sizes swept when none are given (requirements N8): smallest and largest.
    pub const fn default_range(self) -> (u64, u64) {
        match self {
            Unit::Elements => (1_024, 8 << 20),
            Unit::Dim => (16, 2_048),
            Unit::Bytes => (1_024, 64 << 20),
            Unit::Calls => (1, 256),
            Unit::InputElements => (1_024, 1 << 20),
            Unit::Flops => (1 << 20, 1 << 32),
        }
    }
}

/// How an operand takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read.
    In,
    /// Written.
    Out,
    /// Written, and its previous contents may be read (gemm's C).
    InOut,
}

/// Dtype of an operand given the case.
#[derive(Clone, Copy, Debug)]
pub enum DTypeRule {
    /// The case's.
    Same,
    /// The case's for floats, i64 or u64 for integers.
    Sum,
    /// Always this.
    Fixed(DType),
    /// What the case says: i32 for gemm's C of i8, the `to` of a cast.
    By(fn(&Case) -> DType),
}

impl DTypeRule {
    /// The operand's dtype.
    pub fn of(self, case: &Case) -> DType {
        match self {
            DTypeRule::Same => case.dtype,
            DTypeRule::Fixed(d) => d,
            DTypeRule::By(rule) => rule(case),
            DTypeRule::Sum => match case.dtype {
                DType::I8 | DType::I16 | DType::I32 | DType::I64 => DType::I64,
                DType::U8 | DType::U16 | DType::U32 | DType::U64 => DType::U64,
                float => float,
            },
        }
    }
}

/// One operand.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Name in docs and errors.
    pub name: &'static str,
    /// Role.
    pub role: Role,
    /// Dtype.
    pub dtype: DTypeRule,
}

impl Operand {
    /// A read operand of the case's dtype.
    pub const fn input(name: &'static str) -> Self {
        Operand { name, role: Role::In, dtype: DTypeRule::Same }
    }
    /// A written operand of the case's dtype.
    pub const fn output(name: &'static str) -> Self {
        Operand { name, role: Role::Out, dtype: DTypeRule::Same }
    }
}

/// Uniform data of an operand; integers are drawn from the same range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range(pub f64, pub f64);

/// Whether and how an op can be differentiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grad {
    /// Not differentiable, or its rule needs an op that the table does not have yet; the reason says which.
    None(&'static str),
}

/// How thoroughly to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Seconds per device: edges, one typical size, special values.
    Smoke,
    /// Minutes: every class of shapes and data.
    Full,
    /// Hours: every input that there is, for functions of one number in 16 or 32 bits (`jobs::verify`); no cases of its own.
    Exhaustive,
}

/// Cases that the full tier has per op and dtype beside those of the op's own list.
const CROSSED: usize = 14;
/// Bytes of all operands up to which a shape is tried with other data, too.
const CROSSED_BYTES: u64 = 1 << 16;

/// A case without its dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseSpec {
    /// Sizes in order of `dims`.
    pub dims: Vec<u64>,
    /// Attributes.
    pub attrs: Attrs,
    /// Data.
    pub fill: Fill,
}

/// All ops by family, in the order in which they are listed.
static FAMILIES: &[&[&OpDesc]] = &[
    broadcast::OPS,
    elementwise::OPS,
    stream::OPS,
    cast::OPS,
    activation::OPS,
    bias::OPS,
    reduce::OPS,
    norm::OPS,
    matmul::OPS,
    products::OPS,
    conv::OPS,
    pool::OPS,
    movement::OPS,
    peak::OPS,
    micro::OPS,
];

/// What other ops are measured by: each asks for one ability of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Probe {
    /// Memory read and written once each, by a kernel.
    Copy,
    /// Memory read, by a kernel.
    Read,
    /// Memory written, by a kernel.
    Write,
    /// Fused multiply-adds.
    Arithmetic,
    /// A copy on the device, by its API.
    OnDevice,
    /// Host to device.
    Upload,
    /// Device to host.
    Download,
    /// Empty kernels.
    Launch,
}

impl Probe {
    /// The op that asks.
    pub fn op(self) -> &'static OpDesc {
        match self {
            Probe::Copy => stream::PROBES[0],
            Probe::Write => stream::PROBES[1],
            Probe::Read => reduce::PROBE,
            Probe::Arithmetic => peak::PROBE,
            Probe::OnDevice => micro::PROBES[0],
            Probe::Upload => micro::PROBES[1],
            Probe::Download => micro::PROBES[2],
            Probe::Launch => micro::PROBES[3],
        }
    }
}

/// All ops in the order in which they are listed.
pub fn all() -> impl Iterator<Item = &'static OpDesc> {
    FAMILIES.iter().flat_map(|f| f.iter().copied())
}

/// The words of the table that name calls in a profile: op, family, unit. For `Chooser::knowing`.
pub fn words() -> impl Iterator<Item = [&'static str; 3]> {
    all().flat_map(|op| op.families.iter().map(|f| [op.name, f.name, op.unit.name()]))
}

/// The op of that name; the error proposes the nearest names.
pub fn find(name: &str) -> Result<&'static OpDesc> {
    all().find(|op| op.name == name).ok_or_else(|| {
        let near: Vec<_> = all().map(|o| o.name).filter(|n| near(n, name)).collect();
        let hint = if near.is_empty() { all().map(|o| o.name).collect() } else { near };
        Error::new(Code::UnknownOp, format!("unknown op '{name}'; known: {}", hint.join(" ")))
    })
}

/// True for names that share their first two letters or contain each other.
fn near(a: &str, b: &str) -> bool {
    let head = |s: &str| s.chars().take(2).collect::<String>();
    a.contains(b) || b.contains(a) || head(a) == head(b)
}

impl OpDesc {
    /// Whether the size of a call says all of its shape.
    pub fn has_one_dimension(&self) -> bool {
        self.dims.len() == 1
    }

    /// A case with the given sizes; attributes are checked against the declarations, sizes against `shapes`.
    pub fn case(&self, dtype: DType, dims: &[u64], attrs: Attrs, fill: Fill) -> Result<Case> {
        if dims.len() != self.dims.len() {
            return Err(Error::new(
                Code::BadArgument,
                format!("{} sizes given, the op takes {}: {}", dims.len(), self.dims.len(), self.dims.join("x")),
            )
            .op(self.name));
        }
        if !self.dtypes.contains(&dtype) {
            let has: Vec<_> = self.dtypes.iter().map(|d| d.name()).collect();
            return Err(
                Error::new(Code::DTypeUnsupported, format!("no {dtype}; the op has {}", has.join(" "))).op(self.name)
            );
        }
        if let Some((name, _)) = attrs.iter().find(|(n, _)| !self.attrs.iter().any(|d| d.name == *n)) {
            let has: Vec<_> = self.attrs.iter().map(|d| d.name).collect();
            return Err(Error::new(
                Code::BadArgument,
                format!(
                    "no attribute '{name}'; the op has: {}",
                    if has.is_empty() { "none".into() } else { has.join(" ") }
                ),
            )
            .op(self.name));
        }
        for d in self.attrs {
            attrs.get(d.name).map_or(Ok(()), |v| d.check(v)).map_err(|e| e.op(self.name))?;
        }
        let mut kept = Attrs::new();
        for d in self.attrs {
            if let Some(v) = attrs.get(d.name)
                && *v != d.default()
            {
                kept = kept.with(d.name, v.clone());
            }
        }
        let case = Case {
            op: self.name,
            dtype,
            dims: self.dims.iter().copied().zip(dims.iter().copied()).collect(),
            attrs: kept,
            fill,
        };
        (self.shapes)(&case).map_err(|e| e.op(self.name).shape(&case.shape_text()))?;
        Ok(case)
    }

    /// The cases of a tier for a dtype: those whose scalars it holds (a fraction is no case of an integer op). The full
    /// tier also has small shapes of the list with data of other cases of the list: a tail may be wrong for NaN alone.
    pub fn specs(&self, tier: Tier, dtype: DType) -> Vec<CaseSpec> {
        let holds = |spec: &CaseSpec| spec.attrs.iter().all(|(_, v)| !matches!(v, Attr::Float(s) if !dtype.holds(*s)));
        let mut list: Vec<_> = (self.cases)(tier).into_iter().filter(holds).collect();
        if tier == Tier::Full && !matches!(self.unit, Unit::Bytes | Unit::Calls) {
            self.cross(&mut list, dtype);
        }
        list
    }

    /// Adds up to [`CROSSED`] pairs of a small shape and a kind of data that the list has, but not together.
    fn cross(&self, list: &mut Vec<CaseSpec>, dtype: DType) {
        let mut shapes: Vec<(Vec<u64>, Attrs)> = Vec::new();
        let mut fills: Vec<Fill> = Vec::new();
        for spec in list.iter() {
            let small = || {
                let case = self.case(dtype, &spec.dims, spec.attrs.clone(), spec.fill).ok()?;
                self.total_bytes(&case).filter(|b| *b <= CROSSED_BYTES)
            };
            let shape = (spec.dims.clone(), spec.attrs.clone());
            if !shapes.contains(&shape) && !spec.dims.contains(&0) && small().is_some() {
                shapes.push(shape);
            }
            if !fills.contains(&spec.fill) {
                fills.push(spec.fill);
            }
        }
        // Round by round each shape meets the next kind of data.
        let wanted = list.len() + CROSSED;
        for round in 0..fills.len() {
            for (i, (dims, attrs)) in shapes.iter().enumerate() {
                let spec =
                    CaseSpec { dims: dims.clone(), attrs: attrs.clone(), fill: fills[(i + round) % fills.len()] };
                if list.len() < wanted && !list.contains(&spec) {
                    list.push(spec);
                }
            }
        }
    }

    /// The case that `--sizes n` means.
    pub fn sized(&self, dtype: DType, size: u64, attrs: Attrs) -> Result<Case> {
        self.case(dtype, &(self.families[0].sweep)(size), attrs, Fill::Uniform)
    }

    /// The family of a case; `None` means that no threshold may ever be applied to it.
    pub fn family(&self, case: &Case) -> Option<&'static Family> {
        self.families.iter().find(|f| (f.matches)(case))
    }

    /// What a cost curve needs to know of a case. Allocates nothing.
    pub fn features(&self, case: &Case) -> Features {
        let mut dims = [0; MOST_DIMS];
        for (to, (_, size)) in dims.iter_mut().zip(&case.dims) {
            *to = *size;
        }
        Features { work: (self.work)(case), cost: (self.cost)(case), dims }
    }

    /// Dtype of operand `i` in a case.
    pub fn operand_dtype(&self, i: usize, case: &Case) -> DType {
        self.operands[i].dtype.of(case)
    }

    /// Numbers of the written operands among all.
    pub fn written(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.operands.len()).filter(|i| self.operands[*i].role != Role::In)
    }

    /// The bounds of all written operands for kernels in `lang`; `None` if no limit is published for one of them.
    pub fn bounds(&self, case: &Case, lang: Lang) -> Option<Vec<Bound>> {
        self.written()
            .enumerate()
            .map(|(position, i)| self.tolerance.at(position).bound(case, lang, self.operand_dtype(i, case)))
            .collect()
    }

    /// The classes of shapes that a case belongs to.
    pub fn classes(&self, case: &Case) -> Vec<ShapeClass> {
        let sizes: Vec<u64> = case.dims.iter().map(|(_, v)| *v).collect();
        let shapes = (self.shapes)(case).unwrap_or_default();
        let prime = |n: u64| n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        let (low, high) = (sizes.iter().min().copied().unwrap_or(0), sizes.iter().max().copied().unwrap_or(0));
        let groups = || {
            let gpu = DeviceInfo::ordinary_gpu();
            let choice = crate::kernel::choose(self.kernels, case, &gpu, None);
            choice.is_ok_and(|c| c.plan.steps.iter().any(|s| s.groups.iter().product::<u64>() > 65_535))
        };
        let belongs = |class: &ShapeClass| match class {
            ShapeClass::Empty => shapes.iter().any(|s| s.contains(&0)),
            ShapeClass::One => high == 1 && low == 1,
            ShapeClass::Prime => high >= 5 && sizes.iter().all(|n| *n == 1 || prime(*n)),
            ShapeClass::Tile => sizes.iter().any(|n| *n > 0 && n % 16 == 0),
            ShapeClass::TileEdge => sizes.iter().any(|n| *n >= 15 && matches!(n % 16, 1 | 15)),
            ShapeClass::Uneven => low > 0 && high / low >= 4,
            ShapeClass::LongRow => high > 1 << 19,
            ShapeClass::ManyGroups => low > 0 && groups(),
        };
        ShapeClass::ALL.into_iter().filter(belongs).collect()
    }

    /// Bytes of all operands together; `None` if they exceed 64 bits.
    pub fn total_bytes(&self, case: &Case) -> Option<u64> {
        let shapes = (self.shapes)(case).ok()?;
        shapes.iter().enumerate().try_fold(0u64, |acc, (i, s)| {
            let bytes = crate::base::host::count(s).ok()?.checked_mul(self.operand_dtype(i, case).size())?;
            acc.checked_add(bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_records_complete() {
        let mut names: Vec<_> = all().map(|o| o.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for op in all() {
            assert!(op.doc.len() > 10 && op.doc.ends_with('.'), "{}: doc", op.name);
            assert!(!op.dims.is_empty() && !op.families.is_empty() && !op.dtypes.is_empty() && !op.kernels.is_empty());
            let read = op.operands.iter().filter(|o| o.role != Role::Out).count();
            assert_eq!(op.domain.len(), read, "{}: one range per read operand", op.name);
            assert!(op.operands.iter().any(|o| o.role != Role::In), "{}: no output", op.name);
        }
    }

    #[test]
    fn every_case_is_valid_and_its_name_parses_back() {
        for op in all() {
            for tier in [Tier::Smoke, Tier::Full] {
                let specs = (op.cases)(tier);
                assert!(!specs.is_empty(), "{}", op.name);
                for s in specs {
                    let case = op.case(op.dtypes[0], &s.dims, s.attrs, s.fill).unwrap();
                    let again = case::parse(&case.to_string()).unwrap();
                    assert_eq!(case, again);
                }
            }
        }
    }

    #[test]
    fn sweeps_stay_in_their_family_and_grow() {
        for op in all() {
            for family in op.families {
                let (low, high) = op.unit.default_range();
                let mut last = 0;
                let mut size = low;
                while size <= high {
                    let case = op.case(op.dtypes[0], &(family.sweep)(size), Attrs::new(), Fill::Uniform).unwrap();
                    assert_eq!(op.family(&case).map(|f| f.name), Some(family.name), "{case}");
                    let work = (op.work)(&case);
                    assert!(work > last, "{case}: work does not grow");
                    last = work;
                    size *= 2;
                }
            }
        }
    }

    /// Sizes that are rounded to whole rows or images are sizes of the sweep. Where images of 1100 elements were what the sweep has for
    /// 1160, and those of 1000 what it has for 1100, thresholds of two calibrations lay a whole image apart.
    #[test]
    fn the_size_of_what_a_sweep_has_makes_it_again() {
        let counted = |op: &&OpDesc| matches!(op.unit, Unit::Elements | Unit::InputElements);
        for op in all().filter(counted) {
            for family in op.families {
                let work = |size: u64| {
                    (op.work)(&op.case(op.dtypes[0], &(family.sweep)(size), Attrs::new(), Fill::Uniform).unwrap())
                        as u64
                };
                let (low, high) = op.unit.default_range();
                let mut size = low;
                while size <= high {
                    let has = work(size);
                    assert_eq!(work(has), has, "{} {}: {size}", op.name, family.name);
                    assert!(has <= 2 * size && size <= 2 * has, "{} {}: {has} for {size}", op.name, family.name);
                    size += 1 + size / 37;
                }
            }
        }
    }

    /// Routing must be monotone up to 2^40 (upstream's 32-bit product switched the GPU off from 2048² on).
    #[test]
    fn work_does_not_overflow() {
        let gemm = find("gemm").unwrap();
        let mut last = 0;
        for e in 0..=13 {
            let case = gemm.sized(DType::F32, 1 << e, Attrs::new()).unwrap();
            let work = (gemm.work)(&case);
            assert!(work > last);
            last = work;
        }
        assert_eq!(Unit::Dim.work_of(1 << 40), 1u128 << 120);
    }

    #[test]
    fn errors_name_the_op_and_the_choices() {
        assert!(find("gemmm").unwrap_err().to_string().contains("gemm"));
        let gemm = find("gemm").unwrap();
        let e = gemm.case(DType::F32, &[1, 2], Attrs::new(), Fill::Uniform).unwrap_err();
        assert!(e.to_string().contains("mxnxk"), "{e}");
        let attrs = Attrs::new().with("gamma", crate::base::Attr::Float(1.0));
        let e = gemm.case(DType::F32, &[1, 2, 3], attrs, Fill::Uniform).unwrap_err();
        assert!(e.to_string().contains("transA"), "{e}");
    }
}
