//! What results are held against: the oracle's exact values with the bounds of a language. For jobs that need to know whether a
//! result can be trusted; `verify` reports more.

use std::sync::OnceLock;

use super::tolerance::Bound;
use super::{OpDesc, Reference};
use crate::base::exact::min_normal;
use crate::base::{Case, Exact, HostTensor, Lang};

/// The right results of a case on its data.
#[derive(Debug)]
pub struct Expected {
    op: &'static OpDesc,
    case: Case,
    lang: Lang,
    references: Vec<Reference>,
    bounds: Vec<Bound>,
    /// The oracle's answers to the same data without subnormal numbers; asked for when an element needs them.
    flushed: OnceLock<Option<Vec<Reference>>>,
}

impl Expected {
    /// Asks the op's oracle. `None` if no limit is published for the case in this language.
    pub fn new(op: &'static OpDesc, case: &Case, lang: Lang, inputs: &[HostTensor]) -> Option<Self> {
        let bounds = op.bounds(case, lang)?;
        let references = answers(op, case, inputs);
        Some(Expected { op, case: case.clone(), lang, references, bounds, flushed: OnceLock::new() })
    }

    /// Elements of all results.
    pub fn elements(&self) -> u64 {
        self.references.iter().map(|r| r.values.len() as u64).sum()
    }

    /// The first element that is not right, in words; `None` if all are. `inputs` are those of [`Expected::new`]. WGSL may take
    /// subnormal numbers for zeros: there an element is right if it is right by either reading.
    pub fn first_wrong(&self, inputs: &[HostTensor], got: &[HostTensor]) -> Option<String> {
        if got.len() != self.references.len() || got.len() != self.bounds.len() {
            return Some(format!("{} results, the oracle has {}", got.len(), self.references.len()));
        }
        (0..got.len()).find_map(|at| {
            let bound = &self.bounds[at];
            let excused = |i: usize, value: Exact| {
                let flushed = self.flushed(inputs).and_then(|f| f.get(at));
                flushed.is_some_and(|f| bound.judge(value, f.values[i], f.scale[i]).ok)
            };
            bound.first_wrong_unless(&self.references[at], &got[at], excused)
        })
    }

    fn flushed(&self, inputs: &[HostTensor]) -> Option<&[Reference]> {
        let ask = || {
            let zeroed = (self.lang == Lang::Wgsl).then(|| without_subnormals(inputs)).flatten()?;
            let answers = answers(self.op, &self.case, &zeroed);
            let alike = |(a, b): (&Reference, &Reference)| a.values.len() == b.values.len();
            let fits = answers.len() == self.references.len() && answers.iter().zip(&self.references).all(alike);
            fits.then_some(answers)
        };
        self.flushed.get_or_init(ask).as_deref()
    }
}

fn answers(op: &OpDesc, case: &Case, inputs: &[HostTensor]) -> Vec<Reference> {
    let exact: Vec<Vec<Exact>> = inputs.iter().map(Exact::read_all).collect();
    (op.oracle)(case, &exact)
}

/// The same data with subnormal numbers replaced by zeros of their sign; `None` if there are none.
pub fn without_subnormals(inputs: &[HostTensor]) -> Option<Vec<HostTensor>> {
    let mut any = false;
    let mut zeroed = inputs.to_vec();
    for tensor in &mut zeroed {
        any |= flush(tensor);
    }
    any.then_some(zeroed)
}

/// Replaces subnormal elements by zeros of their sign; true if there was one.
fn flush(t: &mut HostTensor) -> bool {
    let (dtype, n) = (t.dtype, t.len());
    if !dtype.is_float() {
        return false;
    }
    let small: Vec<(usize, bool)> = (0..n)
        .filter_map(|i| {
            let v = Exact::read(t, i).to_f64();
            (v != 0.0 && v.abs() < min_normal(dtype)).then_some((i as usize, v < 0.0))
        })
        .collect();
    let size = dtype.size() as usize;
    for (i, negative) in &small {
        let bytes = &mut t.bytes_mut()[i * size..(i + 1) * size];
        bytes.fill(0);
        // Little-endian: the sign is the highest bit of the last byte.
        bytes[size - 1] = if *negative { 0x80 } else { 0 };
    }
    !small.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attr, Attrs, DType, Fill};
    use crate::op;

    #[test]
    fn subnormals_become_zeros_of_their_sign() {
        let mut t = HostTensor::from_slice(&[1e-40f32, -1e-40, 1.0, 0.0], &[4]).unwrap();
        assert!(flush(&mut t));
        let v = t.to_vec::<f32>().unwrap();
        assert_eq!(v, [0.0, 0.0, 1.0, 0.0]);
        assert!(v[1].is_sign_negative() && !flush(&mut t));
    }

    #[test]
    fn a_flushed_subnormal_is_right_in_wgsl_and_nowhere_else() {
        let op = op::find("neg").unwrap();
        let case = op.case(DType::F32, &[3], Attrs::new(), Fill::Uniform).unwrap();
        let tiny = f32::MIN_POSITIVE / 4.0;
        let of = |v: [f32; 3]| vec![HostTensor::from_slice(&v, &[3]).unwrap()];
        let inputs = of([1.0, tiny, -2.0]);
        for lang in [Lang::Wgsl, Lang::OpenclC] {
            let e = Expected::new(op, &case, lang, &inputs).unwrap();
            assert_eq!(e.elements(), 3);
            assert_eq!(e.first_wrong(&inputs, &of([-1.0, -tiny, 2.0])), None);
            assert!(e.first_wrong(&inputs, &of([-1.0, -tiny, 2.5])).unwrap().starts_with("element 2 is"));
            assert!(e.first_wrong(&inputs, &[]).unwrap().contains("0 results"));
        }
        // 1/x: a subnormal x has a finite reciprocal, zero has none, and what WGSL makes of an infinity is open.
        let op = op::find("pow_scalar").unwrap();
        let attrs = Attrs::new().with("scalar", Attr::Float(-1.0));
        let case = op.case(DType::F32, &[3], attrs, Fill::Special).unwrap();
        let inputs = of([1.0, f32::MIN_POSITIVE / 2.0, 4.0]);
        let got = of([1.0, 1.134_276e38, 0.25]);
        let wrong = |lang| Expected::new(op, &case, lang, &inputs).unwrap().first_wrong(&inputs, &got);
        assert_eq!(wrong(Lang::Wgsl), None);
        assert!(wrong(Lang::OpenclC).unwrap().starts_with("element 1 is"));
        let normal = of([1.0, 0.5, 4.0]);
        let e = Expected::new(op, &case, Lang::Wgsl, &normal).unwrap();
        assert!(e.first_wrong(&normal, &got).is_some(), "without a subnormal number there is nothing to take for zero");
    }
}
