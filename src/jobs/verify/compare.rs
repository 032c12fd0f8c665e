//! One output against the oracle, element by element: what is wrong, where, by how much, and in which pattern.

use crate::base::exact::{Exact, min_normal, ulp};
use crate::base::{Code, DType, Error, HostTensor, Result};
use crate::op::tolerance::Judged;

use super::Detector;
use super::oracle::Answer;
use super::own_bound::Judge;

/// The outcome of one output.
#[derive(Clone, Debug, Default)]
pub(super) struct Comparison {
    pub(super) compared: u64,
    /// Elements of the output; more than `compared` where a sample was judged.
    pub(super) total: u64,
    pub(super) wrong: u64,
    pub(super) undefined: u64,
    /// Elements that only the user's bound accepts.
    pub(super) beyond: u64,
    pub(super) max_ulp: f64,
    pub(super) max_rel: f64,
    pub(super) max_abs: f64,
    pub(super) max_scaled: f64,
    pub(super) worst: Option<Worst>,
    /// Which rules the wrong elements broke.
    pub(super) fired: Vec<Detector>,
    /// First and last wrong element.
    span: Option<(u64, u64)>,
    /// All wrong elements hold zero.
    zeros: bool,
    /// All elements are equal although the oracle's are not: their value.
    constant: Option<String>,
}

/// The element whose error is the largest share of its bound.
#[derive(Clone, Debug)]
pub(super) struct Worst {
    pub(super) index: u64,
    pub(super) at: Vec<u64>,
    pub(super) got: String,
    pub(super) want: String,
    pub(super) error: Option<f64>,
    pub(super) bound: f64,
    share: f64,
}

/// Compares `got` with the oracle, at the elements that the oracle has. `flushed` is the oracle's answer for inputs without subnormals, for languages that may
/// flush them: an element is right if it is right by either.
pub(super) fn compare(
    judge: &Judge<'_>,
    got: &HostTensor,
    answer: &Answer,
    flushed: Option<&Answer>,
    off: Option<Detector>,
) -> Result<Comparison> {
    let want = &answer.reference;
    let n = answer.at.as_ref().map_or(got.len(), |at| at.len() as u64);
    if want.values.len() as u64 != n || want.scale.len() as u64 != n {
        let why = format!("the oracle gave {} values and {} scales for {n}", want.values.len(), want.scale.len());
        return Err(Error::new(Code::Internal, why));
    }
    let flushed = flushed.filter(|f| f.at == answer.at).map(|f| &f.reference);
    let mut c = Comparison { compared: n, total: got.len(), zeros: true, ..Comparison::default() };
    for k in 0..n as usize {
        let i = answer.at.as_ref().map_or(k as u64, |at| at[k]);
        let value = Exact::read(got, i);
        let mut exact = want.values[k];
        let (mut j, mut beyond) = judge.judge(value, exact, want.scale[k]);
        if (!j.ok || beyond)
            && let Some(alt) = flushed
        {
            let (second, too) = judge.judge(value, alt.values[k], alt.scale[k]);
            if second.ok && (!j.ok || !too) {
                (exact, j, beyond) = (alt.values[k], second, too);
            }
        }
        c.beyond += u64::from(beyond);
        if !j.ok {
            let detector = Detector::of(&j);
            // Only the self-test switches a detector off, to see that the faults it exists for then get through.
            j.ok = off == Some(detector);
            if !j.ok && !c.fired.contains(&detector) {
                c.fired.push(detector);
            }
        }
        c.add(got.dtype, &got.shape, i, value, exact, &j);
    }
    let size = got.dtype.size() as usize;
    let mut elements = got.bytes().chunks_exact(size);
    if let Some(first) = elements.next()
        && c.wrong > 0
        && n > 1
        && elements.all(|e| e == first)
        && want.values.iter().any(|v| *v != want.values[0])
    {
        c.constant = Some(text(got.dtype, Exact::read(got, 0)));
    }
    Ok(c)
}

impl Comparison {
    fn add(&mut self, dtype: DType, shape: &[u64], index: u64, got: Exact, want: Exact, j: &Judged) {
        self.undefined += u64::from(j.undefined);
        if let Some(error) = j.error {
            let w = want.to_f64();
            // What the language leaves open says nothing about how exact the kernel is.
            if !j.undefined {
                self.max_abs = self.max_abs.max(error);
                self.max_ulp = self.max_ulp.max(error / ulp(dtype, w));
                if w != 0.0 && w.abs() >= min_normal(dtype) {
                    self.max_rel = self.max_rel.max(error / w.abs());
                }
            }
            self.max_scaled = self.max_scaled.max(j.scaled.unwrap_or(0.0));
        }
        let share = match j.error {
            Some(0.0) if j.ok => return,
            Some(error) if j.allowed > 0.0 => error / j.allowed,
            None if j.ok => return,
            _ => f64::INFINITY,
        };
        if !j.ok {
            self.wrong += 1;
            self.zeros &= got.to_f64() == 0.0;
            self.span = Some((self.span.map_or(index, |s| s.0), index));
        }
        // A wrong element always outweighs a right one, whatever rule made it right.
        let share = if j.ok { share.min(1.0) } else { share.max(1.0 + f64::EPSILON) };
        if self.worst.as_ref().is_none_or(|w| share > w.share) {
            self.worst = Some(Worst {
                index,
                at: coordinates(shape, index),
                got: text(dtype, got),
                want: text(dtype, want),
                error: j.error,
                bound: j.allowed,
                share,
            });
        }
    }

    /// What is wrong in words: how many elements, where, in which pattern.
    pub(super) fn pattern(&self, shape: &[u64]) -> String {
        let (first, last) = self.span.unwrap_or((0, 0));
        let mut out = format!("{} of {} elements beyond their bound", self.wrong, self.compared);
        if self.wrong > 1 {
            let place = |i| at_text(&coordinates(shape, i));
            let all = last - first + 1 == self.wrong;
            let end = if last + 1 == self.total { "the last".to_string() } else { place(last) };
            out.push_str(&format!(", {} {} to {end}", if all { "all from" } else { "within" }, place(first)));
        }
        if let Some(value) = &self.constant {
            out.push_str(&format!("; suspicious: all {} elements equal {value}", self.compared));
        } else if self.zeros && self.wrong > 0 {
            out.push_str("; every wrong element is zero");
        }
        out
    }
}

/// Index of an element in its tensor.
pub(super) fn coordinates(shape: &[u64], index: u64) -> Vec<u64> {
    let mut rest = index;
    let mut at: Vec<u64> = shape
        .iter()
        .rev()
        .map(|d| {
            let i = rest % (*d).max(1);
            rest /= (*d).max(1);
            i
        })
        .collect();
    at.reverse();
    at
}

/// `[6,32]`.
pub(super) fn at_text(at: &[u64]) -> String {
    let parts: Vec<_> = at.iter().map(u64::to_string).collect();
    format!("[{}]", parts.join(","))
}

/// A value of a dtype, short: integers in full, floats with the digits that tell them apart, plus one for the oracle's.
fn text(dtype: DType, v: Exact) -> String {
    let x = match v {
        Exact::I(i) => return i.to_string(),
        Exact::F(f) => f.hi(),
    };
    let digits = match dtype {
        DType::F16 | DType::BF16 => 5,
        DType::F32 => 9,
        _ => 17,
    };
    if x == 0.0 || !x.is_finite() {
        return format!("{x:?}").replace(".0", "");
    }
    if (1e-4..1e9).contains(&x.abs()) {
        let before = x.abs().log10().floor() as i32 + 1;
        let text = format!("{x:.*}", (digits - before).max(0) as usize);
        return if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text };
    }
    format!("{x:.*e}", (digits - 1) as usize)
}

/// Largest absolute difference of two results of one dtype where both are finite; `None` if no pair is.
pub(super) fn distance(a: &HostTensor, b: &HostTensor) -> Option<f64> {
    (0..a.len().min(b.len()))
        .map(|i| Exact::read(a, i).add(Exact::read(b, i).neg()).abs_f64())
        .filter(|d| d.is_finite())
        .reduce(f64::max)
}

/// Number of elements that show the first poison in one run and the second in the other, and the first of them: they
/// were never written.
pub(super) fn unwritten(first: (&HostTensor, u8), second: (&HostTensor, u8)) -> (u64, u64) {
    let size = first.0.dtype.size() as usize;
    let shows = |t: &[u8], poison: u8| t.iter().all(|b| *b == poison);
    let pairs = first.0.bytes().chunks_exact(size).zip(second.0.bytes().chunks_exact(size));
    let mut found = pairs.enumerate().filter(|(_, (a, b))| shows(a, first.1) && shows(b, second.1)).map(|(i, _)| i);
    match found.next() {
        Some(i) => (1 + found.count() as u64, i as u64),
        None => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_count_row_by_row() {
        assert_eq!(coordinates(&[7, 33], 6 * 33 + 32), [6, 32]);
        assert_eq!(coordinates(&[2, 3, 5], 29), [1, 2, 4]);
        assert!(coordinates(&[], 0).is_empty());
    }

    #[test]
    fn values_are_printed_so_that_they_differ() {
        let one = text(DType::F32, Exact::f(1.0));
        let next = text(DType::F32, Exact::f(f64::from(1.0f32.next_up())));
        assert_eq!(one, "1");
        assert_ne!(one, next);
        assert_eq!(text(DType::F32, Exact::f(-0.0)), "-0");
        assert_eq!(text(DType::F64, Exact::f(f64::INFINITY)), "inf");
        assert_eq!(text(DType::I64, Exact::I(i128::from(i64::MIN))), "-9223372036854775808");
        assert_eq!(text(DType::F32, Exact::f(1e-40)), "1.00000000e-40");
    }

    #[test]
    fn only_elements_with_both_poisons_are_unwritten() {
        let t = |v: &[i32]| HostTensor::from_slice(v, &[v.len() as u64]).unwrap();
        let poisoned = i32::from_ne_bytes([0x5A; 4]);
        assert_eq!(unwritten((&t(&[1, -1, -1]), 0xFF), (&t(&[1, -1, poisoned]), 0x5A)), (1, 2));
        assert_eq!(unwritten((&t(&[1, -1]), 0xFF), (&t(&[1, -1]), 0x5A)), (0, 0));
        let all = (t(&[-1, 3, -1, -1]), t(&[poisoned, 3, poisoned, poisoned]));
        assert_eq!(unwritten((&all.0, 0xFF), (&all.1, 0x5A)), (3, 0));
    }

    use crate::base::{Attrs, Case, Fill, Lang};
    use crate::op::{Reference, Tolerance};

    fn bound(t: Tolerance) -> crate::op::tolerance::Bound {
        let c = Case { op: "t", dtype: DType::F32, dims: vec![("n", 6)], attrs: Attrs::new(), fill: Fill::Uniform };
        t.bound(&c, Lang::Native, DType::F32).unwrap()
    }

    fn answer(values: &[f64], at: Option<Vec<u64>>) -> Answer {
        let values: Vec<Exact> = values.iter().map(|v| Exact::f(*v)).collect();
        Answer { reference: Reference { scale: vec![1.0; values.len()], values }, at }
    }

    fn compared(got: &[f32], shape: &[u64], want: &[f64], off: Option<Detector>) -> Comparison {
        let b = bound(Tolerance::Rounded);
        let got = HostTensor::from_slice(got, shape).unwrap();
        compare(&Judge { bound: &b, own: None }, &got, &answer(want, None), None, off).unwrap()
    }

    #[test]
    fn errors_are_counted_and_the_worst_is_named() {
        let want = [1.0, 2.0, 3.0, 4.0, 5.0, -8.0];
        let clean = compared(&[1.0, 2.0, 3.0, 4.0, 5.0, -8.0], &[2, 3], &want, None);
        assert_eq!((clean.wrong, clean.compared, clean.max_abs, clean.max_ulp), (0, 6, 0.0, 0.0));
        assert!(clean.worst.is_none() && clean.fired.is_empty());
        let c = compared(&[1.0, 2.0, 3.5, 4.0, 5.0, -8.5], &[2, 3], &want, None);
        assert_eq!((c.wrong, c.compared, c.total, c.undefined, c.beyond), (2, 6, 6, 0, 0));
        assert_eq!((c.max_abs, c.max_rel, c.max_ulp), (0.5, 0.5 / 3.0, 0.5 / 2f64.powi(-22)));
        let w = c.worst.as_ref().unwrap();
        assert_eq!((w.index, w.at.as_slice(), w.got.as_str(), w.want.as_str()), (2, &[0, 2][..], "3.5", "3"));
        assert_eq!((w.error, w.bound), (Some(0.5), 2f64.powi(-23)));
        assert_eq!(c.fired, [Detector::Bound]);
        assert_eq!(c.pattern(&[2, 3]), "2 of 6 elements beyond their bound, within [0,2] to the last");
        let c = compared(&[1.0, 0.0, 0.0, 4.0, 5.0, -8.0], &[2, 3], &want, None);
        assert_eq!(
            c.pattern(&[2, 3]),
            "2 of 6 elements beyond their bound, all from [0,1] to [0,2]; every wrong element is zero"
        );
        let c = compared(&[7.0; 6], &[6], &want, None);
        assert_eq!(
            c.pattern(&[6]),
            "6 of 6 elements beyond their bound, all from [0] to the last; suspicious: all 6 elements equal 7"
        );
        assert_eq!(
            compared(&[1.0, 2.0, 3.0, 4.0, 5.0, 8.0], &[6], &want, None).pattern(&[6]),
            "1 of 6 elements beyond their bound"
        );
        // Equal results for equal expectations are nothing to wonder about.
        assert!(!compared(&[7.0; 2], &[2], &[1.0, 1.0], None).pattern(&[2]).contains("suspicious"));
        assert!(!compared(&[7.0, 1.0], &[2], &[1.0, 2.0], None).pattern(&[2]).contains("suspicious"));
    }

    #[test]
    fn non_finite_results_belong_to_another_detector() {
        let c = compared(&[f32::NAN, 2.0], &[2], &[1.0, 2.0], None);
        assert_eq!((c.wrong, c.fired.as_slice(), c.worst.unwrap().error), (1, &[Detector::Class][..], None));
        let off = compared(&[f32::NAN, 2.0], &[2], &[1.0, 2.0], Some(Detector::Class));
        assert_eq!((off.wrong, off.fired.len()), (0, 0));
        let other = compared(&[f32::NAN, 2.0], &[2], &[1.0, 2.0], Some(Detector::Bound));
        assert_eq!(other.wrong, 1);
        let c = compared(&[f32::INFINITY, 2.5], &[2], &[f64::INFINITY, 2.0], None);
        assert_eq!((c.wrong, c.worst.unwrap().index), (1, 1));
        // Tiny values have no relative error, and zero has none to divide by.
        let c = compared(&[1e-38, 0.5], &[2], &[0.0, 0.5], None);
        assert_eq!((c.max_rel, c.wrong), (0.0, 1));
    }

    #[test]
    fn what_a_language_leaves_open_is_counted_apart() {
        let c = Case { op: "t", dtype: DType::F32, dims: vec![("n", 3)], attrs: Attrs::new(), fill: Fill::Uniform };
        let b = Tolerance::Function("sin").bound(&c, Lang::Wgsl, DType::F32).unwrap();
        let got = HostTensor::from_slice(&[0.5f32, 7.0, 9.0], &[3]).unwrap();
        // Beyond pi nothing is published for sin; within it 2^-11.
        let mut want = answer(&[0.500_1, 0.25, 0.75], None);
        want.reference.scale = vec![1.0, 100.0, 200.0];
        let c = compare(&Judge { bound: &b, own: None }, &got, &want, None, None).unwrap();
        assert_eq!((c.undefined, c.wrong, c.compared), (2, 0, 3));
        assert!(c.max_abs < 1.1e-4 && c.max_rel < 2.2e-4 && c.max_scaled > 1.0, "{c:?}");
        assert_eq!(c.worst.unwrap().share, 1.0, "no share above the bound for what is open");
    }

    #[test]
    fn exact_values_have_no_bound_to_share() {
        let b = bound(Tolerance::Exact);
        let judge = Judge { bound: &b, own: None };
        let got = HostTensor::from_slice(&[1.0f32, -0.0, 3.0], &[3]).unwrap();
        let c = compare(&judge, &got, &answer(&[1.0, 0.0, 3.0], None), None, None).unwrap();
        assert_eq!((c.wrong, c.fired.as_slice(), c.max_abs), (1, &[Detector::Bits][..], 0.0));
        let w = c.worst.unwrap();
        assert_eq!((w.index, w.share, w.want.as_str(), w.got.as_str()), (1, f64::INFINITY, "0", "-0"));
        let single = HostTensor::from_slice(&[5.0f32], &[1]).unwrap();
        let c = compare(&judge, &single, &answer(&[1.0], None), None, None).unwrap();
        assert_eq!(c.pattern(&[1]), "1 of 1 elements beyond their bound");
        // Among wrong elements the one furthest beyond its bound, and any of them before a right one.
        let r = bound(Tolerance::Function("exp"));
        let got = HostTensor::from_slice(&[1.0f32 + f32::EPSILON, 1.1, 1.2, 1.0], &[4]).unwrap();
        let c = compare(&Judge { bound: &r, own: None }, &got, &answer(&[1.0; 4], None), None, None).unwrap();
        assert_eq!((c.wrong, c.worst.unwrap().index), (2, 2));
    }

    #[test]
    fn samples_and_other_answers() {
        let b = bound(Tolerance::Rounded);
        let got = HostTensor::from_slice(&[9.0f32, 2.0, 9.0, 4.0], &[4]).unwrap();
        let judge = Judge { bound: &b, own: None };
        let c = compare(&judge, &got, &answer(&[2.0, 4.0], Some(vec![1, 3])), None, None).unwrap();
        assert_eq!((c.wrong, c.compared, c.total), (0, 2, 4));
        let c = compare(&judge, &got, &answer(&[9.0, 4.5], Some(vec![2, 3])), None, None).unwrap();
        assert_eq!((c.wrong, c.worst.unwrap().index), (1, 3));
        // What a language may flush: right by either answer is right, and the sample must be the same.
        let want = answer(&[9.0, 2.0, 9.0, 4.5], None);
        let flushed = answer(&[0.0, 0.0, 0.0, 4.0], None);
        assert_eq!(compare(&judge, &got, &want, Some(&flushed), None).unwrap().wrong, 0);
        let elsewhere = answer(&[0.0, 0.0, 0.0, 4.0], Some(vec![0, 1, 2, 3]));
        assert_eq!(compare(&judge, &got, &want, Some(&elsewhere), None).unwrap().wrong, 1);
        let both = answer(&[0.0, 0.0, 0.0, 5.0], None);
        assert_eq!(compare(&judge, &got, &want, Some(&both), None).unwrap().wrong, 1);
        for bad in [
            answer(&[1.0], None),
            Answer { reference: Reference { values: want.reference.values.clone(), scale: vec![] }, at: None },
        ] {
            assert_eq!(compare(&judge, &got, &bad, None, None).unwrap_err().code(), Code::Internal);
        }
    }

    #[test]
    fn an_own_bound_is_counted_where_it_is_weaker() {
        let b = bound(Tolerance::Rounded);
        let own = crate::jobs::verify::OwnBound::new(Some(0.1), None).unwrap();
        let got = HostTensor::from_slice(&[1.05f32, 2.0, 4.0], &[3]).unwrap();
        let c = compare(&Judge { bound: &b, own }, &got, &answer(&[1.0, 2.0, 3.0], None), None, None).unwrap();
        assert_eq!((c.wrong, c.beyond), (1, 1));
        // The flushed answer counts where it needs no weaker bound.
        let flushed = answer(&[f64::from(1.05f32), 2.0, 3.0], None);
        let c =
            compare(&Judge { bound: &b, own }, &got, &answer(&[1.0, 2.0, 3.0], None), Some(&flushed), None).unwrap();
        assert_eq!((c.wrong, c.beyond), (1, 0));
    }

    #[test]
    fn distances_and_short_numbers() {
        let t = |v: &[f32]| HostTensor::from_slice(v, &[v.len() as u64]).unwrap();
        assert_eq!(distance(&t(&[1.0, 5.0, f32::NAN]), &t(&[1.5, 3.0, 1.0])), Some(2.0));
        assert_eq!(distance(&t(&[f32::NAN]), &t(&[1.0])), None);
        assert_eq!(at_text(&[6, 32]), "[6,32]");
        assert_eq!(coordinates(&[0, 3], 2), [0, 2]);
        let half = |v: f64| text(DType::F16, Exact::f(v));
        assert_eq!((half(0.333_333), half(1234.5), half(-2.0)), ("0.33333".into(), "1234.5".into(), "-2".into()));
        assert_eq!(
            (text(DType::F32, Exact::f(1e9)), text(DType::F32, Exact::f(1.25e-4))),
            ("1.00000000e9".into(), "0.000125".into())
        );
    }
}
