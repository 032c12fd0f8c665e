//! How far a result may be from the exact one: bounds derived from published limits.
//!
//! The limits themselves are in `op::limits`.
//!
//! What WGSL leaves open (W3C WGSL 15.7.2, 15.7.4) and the bounds therefore allow for `Lang::Wgsl` alone:
//! - "correctly rounded" is either neighbour of the exact value, so u is 2^(1-p) there, not 2^-p;
//! - subnormal inputs, results and intermediates of arithmetic may be flushed to zero (loads, stores and moves keep them);
//! - the sign of zero may be ignored by arithmetic;
//! - overflow, infinities and NaN may be assumed absent: where one occurs the result is indeterminate. Such an element is
//!   counted apart ([`Judged::undefined`]), neither right nor wrong.

use crate::base::exact::{self, Exact, max_finite, min_normal};
use crate::base::{Attr, Case, DType, Fill, HostTensor, Lang};

use super::limits::{Limit, LimitRow, WGSL, limit};

/// An op's rule.
#[derive(Clone, Copy, Debug)]
pub enum Tolerance {
    /// Every bit must match, the sign of zero too (moves, integer results). Any NaN equals any other.
    Exact,
    /// As `Exact`, but the value is selected by a comparison, whose subnormal operands WGSL may flush (relu).
    Selected,
    /// Correctly rounded: the nearest number, either one at a tie. Zero has no sign here.
    Rounded,
    /// A row of [`super::limits::LIMITS`].
    Function(&'static str),
    /// A formula around one function, such as e^x / (1 + e^x): the function's limit as a relative error (n ulps are
    /// at most 2nu, and of a subnormal number n of the smallest), one division, and so many ulps for the other operations.
    Around {
        /// The row.
        function: &'static str,
        /// Ulps of the surrounding operations.
        extra_ulps: f64,
    },
    /// Sum of products or of terms: γ_t·scale, where scale is Σ|x| or (|A||B|)_ij and t the number of roundings
    /// (Higham, *Accuracy and Stability of Numerical Algorithms*, 3.1 and 3.5, any order of summation, fused or not),
    /// plus the final rounding. Where integer data makes every partial sum exact, every bit must match.
    Gamma(fn(&Case) -> u64),
    /// Softmax over that many terms: exp's limit and the rounding of x - max, each in the term and in the sum, γ_n of
    /// the sum, the division. scale is |x - max| of the term plus its average under the weights of the sum.
    Softmax(fn(&Case) -> u64),
    /// A formula with its own error analysis: the oracle's scale is the largest error that one relative error of 1 in the
    /// stated functions and roundings can cause in the result (|dy/dv|·|v| summed over the intermediates v). Allowed is
    /// (Σ weight·limit of the function + roundings·u)·scale, and the final rounding.
    Formula {
        /// Functions with their weights.
        functions: &'static [(&'static str, f64)],
        /// Roundings of the other operations.
        roundings: f64,
    },
    /// A quotient of a sum as in `Gamma` and its number of terms: γ_t·scale, where scale is Σ|x| / n, and the division's
    /// limit. Where integer data makes every partial sum exact, only that.
    Mean(fn(&Case) -> u64),
    /// As `Formula`, for formulas with sums: γ_t·scale with t roundings in a row at most, besides the stated functions.
    /// Where the scale leaves the range of the arithmetic, partial sums may overflow.
    Analysis {
        /// Functions with their weights.
        functions: &'static [(&'static str, f64)],
        /// Roundings in a row.
        roundings: fn(&Case) -> u64,
    },
    /// One rule for each written operand, in order.
    PerOutput(&'static [Tolerance]),
}

/// γ_n = n·u / (1 - n·u); infinite where the bound says nothing (Higham 3.1).
pub fn gamma(n: u64, u: f64) -> f64 {
    let nu = n as f64 * u;
    if nu < 1.0 { nu / (1.0 - nu) } else { f64::INFINITY }
}

/// How the seeds' strict line scales an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaled {
    /// By the magnitude of the exact value.
    Value,
    /// By the magnitude of the terms.
    Terms,
    /// Not at all: results within [0, 1].
    One,
}

/// The form of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bits,
    Nearest,
    Within,
}

/// A tolerance made concrete for one case, language and output dtype.
#[derive(Clone, Debug)]
pub struct Bound {
    arithmetic: DType,
    storage: DType,
    lang: Lang,
    form: Form,
    scaled: Scaled,
    /// Units in the last place of the exact value.
    ulps: f64,
    /// The same per unit of scale.
    ulps_per_scale: f64,
    /// Error per unit of scale.
    per_scale: f64,
    /// Relative error, and the same per unit of scale.
    relative: f64,
    relative_per_scale: f64,
    absolute: f64,
    /// Part of a limit that depends on the argument or the result otherwise than above.
    curve: Option<Limit>,
    /// Scales for which the limits are published.
    within: (f64, f64),
    /// A scale that stands for the argument of exp has no effect beyond this (results are then 0 or infinite).
    scale_cap: f64,
    /// May a subnormal result be flushed to zero?
    flush: bool,
    /// May a comparison have seen a subnormal operand as zero?
    flush_operand: bool,
    /// Partial sums may overflow where the terms' magnitudes do.
    sums: bool,
    /// The data are integers: sums are exact while the magnitudes stay below 2^p.
    integers: bool,
    /// Terms of the sum for each unit of scale: the number of terms for means.
    terms: f64,
    /// Ulps of an operation on an exact sum.
    after: f64,
    /// The bound in words, with its source.
    pub words: String,
}

/// What became of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// Within the rule.
    pub ok: bool,
    /// The language leaves this element's result open (WGSL, non-finite values); never wrong, and no evidence either.
    pub undefined: bool,
    /// |got - want|; `None` where one of them is not finite.
    pub error: Option<f64>,
    /// Largest allowed error.
    pub allowed: f64,
    /// The error as the seeds' strict line scales it.
    pub scaled: Option<f64>,
}

impl Tolerance {
    /// The rule in words, before a case makes it concrete.
    pub fn words(&self) -> String {
        match self {
            Tolerance::Exact => "exact: every bit".into(),
            Tolerance::Selected => "exact: every bit of the selected value".into(),
            Tolerance::Rounded => "correctly rounded".into(),
            Tolerance::Function(f) => format!("the published limit of {f}"),
            Tolerance::Around { function, extra_ulps } => {
                format!("the published limits of {function} and of division, and {extra_ulps} ulp")
            }
            Tolerance::Gamma(_) => "γ_t·Σ|terms| with t roundings (Higham 3.1), exact for integer data".into(),
            Tolerance::Softmax(_) => "the limit of exp in term and sum, γ_n, a division".into(),
            Tolerance::Formula { functions, roundings } => {
                let parts: Vec<String> = functions.iter().map(|(f, w)| format!("{w} × the limit of {f}")).collect();
                let all = if parts.is_empty() { String::new() } else { format!("{} + ", parts.join(" + ")) };
                format!("({all}{roundings} roundings) of the magnitude of the intermediates")
            }
            Tolerance::Mean(_) => {
                "γ_t·Σ|terms|/n with t roundings (Higham 3.1), only the division's for integer data".into()
            }
            Tolerance::Analysis { functions, .. } => {
                let parts: Vec<String> = functions.iter().map(|(f, w)| format!("{w} × the limit of {f}")).collect();
                format!("(γ_t with t roundings + {}) of the magnitude of the intermediates", parts.join(" + "))
            }
            Tolerance::PerOutput(list) => list.iter().map(Tolerance::words).collect::<Vec<_>>().join("; "),
        }
    }

    /// The rule of written operand number `position`.
    pub fn at(&self, position: usize) -> &Tolerance {
        match self {
            Tolerance::PerOutput(list) => list.get(position).unwrap_or(&Tolerance::Exact),
            one => one,
        }
    }

    /// The bound for a case whose output has dtype `out`, computed by a kernel in `lang`. `None`: no limit is published
    /// for this combination, so nothing can be called verified.
    pub fn bound(&self, case: &Case, lang: Lang, out: DType) -> Option<Bound> {
        let arithmetic = out.compute();
        let nearest = arithmetic.unit_roundoff();
        let wgsl = lang == Lang::Wgsl;
        // What one rounding of the language may lose, relatively, and in ulps.
        let (u, half) = if wgsl { (2.0 * nearest, 1.0) } else { (nearest, 0.5) };
        let tiny = exact::ulp(arithmetic, 0.0);
        let normal = min_normal(arithmetic);
        let mut b = Bound {
            arithmetic,
            storage: out,
            lang,
            form: Form::Within,
            scaled: Scaled::Value,
            ulps: 0.0,
            ulps_per_scale: 0.0,
            per_scale: 0.0,
            relative: 0.0,
            relative_per_scale: 0.0,
            absolute: 0.0,
            curve: None,
            within: (0.0, f64::INFINITY),
            scale_cap: f64::INFINITY,
            flush: wgsl,
            flush_operand: false,
            sums: false,
            integers: false,
            terms: 1.0,
            after: 0.0,
            words: String::new(),
        };
        if !out.is_float() {
            b.form = Form::Bits;
            b.words = "exact: integer result".to_string();
            return Some(b);
        }
        match *self {
            Tolerance::Exact | Tolerance::Selected => {
                b.form = Form::Bits;
                b.flush = false;
                b.flush_operand = wgsl && matches!(self, Tolerance::Selected);
                b.words = "exact: every bit".to_string();
                return Some(b);
            }
            Tolerance::Rounded => {
                b.form = Form::Nearest;
                b.ulps = half;
                // Two operands of WGSL may each be flushed.
                b.absolute = if wgsl { 2.0 * normal } else { 0.0 };
                b.words = match wgsl {
                    true => format!("a neighbour of the exact value ({WGSL}: correctly rounded)"),
                    false => "0.5 ulp: the nearest number (IEEE 754)".to_string(),
                };
            }
            Tolerance::Function(function) => {
                let row = limit(function, lang, out)?;
                b.add(row);
                b.within = row.within;
            }
            Tolerance::Around { function, extra_ulps } => {
                let row = limit(function, lang, out)?;
                let (a, per) = row.limit.ulps()?;
                b.relative = 2.0 * nearest * a;
                b.relative_per_scale = 2.0 * nearest * per;
                b.scale_cap = exp_range(arithmetic);
                b.add(limit("divide", lang, out)?);
                b.ulps += extra_ulps * 2.0 * half;
                // Where the result is subnormal the exponential is, too: its limit is in ulps of the smallest number.
                b.absolute += (a + per * b.scale_cap) * tiny;
                b.words = format!("{} + {} + {extra_ulps} ulp of arithmetic", row.words(), b.words);
            }
            Tolerance::Gamma(terms) => {
                let n = terms(case);
                b.ulps = half;
                b.per_scale = gamma(n, u);
                // A product that underflows loses up to half the smallest subnormal (Higham 2.8); twice that, for the
                // oracle's own products may underflow too. On WGSL each may be flushed.
                b.absolute = n as f64 * if wgsl { 2.0 * normal } else { 2.0 * tiny };
                b.sums = true;
                b.integers = case.fill == Fill::Integer && whole_attrs(case);
                b.scaled = Scaled::Terms;
                b.words = format!("gamma_{n} (Higham 3.1) of the sum of magnitudes + {half} ulp");
                if b.integers {
                    b.words = format!("exact: integers below 2^{}", arithmetic.mantissa_bits().unwrap_or(0));
                }
            }
            Tolerance::Mean(terms) => {
                let n = terms(case);
                let row = limit("divide", lang, out)?;
                let (after, _) = row.limit.ulps()?;
                b.after = after;
                b.per_scale = gamma(n, u) * (1.0 + 4.0 * nearest * after);
                b.absolute = if wgsl { 2.0 * normal } else { 2.0 * tiny };
                b.sums = true;
                b.integers = case.fill == Fill::Integer;
                b.terms = n.max(1) as f64;
                b.scaled = Scaled::Terms;
                b.words = format!("gamma_{n} (Higham 3.1) of the mean magnitude, unless integers; + {}", row.words());
            }
            Tolerance::Analysis { functions, roundings } => {
                let n = roundings(case);
                let mut words = vec![format!("gamma_{n} (Higham 3.1) of the magnitude of the intermediates")];
                for (function, weight) in functions {
                    let row = limit(function, lang, out)?;
                    let (a, per) = row.limit.ulps()?;
                    b.per_scale += weight * (a + per) * 2.0 * nearest;
                    words.push(format!("{weight} x {}", row.words()));
                }
                // First-order sum of the relative errors, then 1/(1 - r) for their products.
                b.per_scale += gamma(n, u);
                b.per_scale /= (1.0 - b.per_scale).max(0.5);
                b.ulps = half;
                b.absolute = (n + 1) as f64 * if wgsl { normal } else { tiny };
                b.sums = true;
                b.scaled = Scaled::Terms;
                words.push(format!("{half} ulp"));
                b.words = words.join(" + ");
            }
            Tolerance::PerOutput(_) => return self.at(0).bound(case, lang, out),
            Tolerance::Formula { functions, roundings } => {
                let mut words = Vec::new();
                for (function, weight) in functions {
                    let row = limit(function, lang, out)?;
                    match row.limit {
                        // An ulp is at most 2u of the value; an argument's share |x| is in the oracle's scale.
                        Limit::Ulp(n) => b.per_scale += weight * n * 2.0 * nearest,
                        Limit::UlpPlus(n, per) => b.per_scale += weight * (n + per) * 2.0 * nearest,
                        Limit::Abs(a) => b.per_scale += weight * a,
                        // No formula has been derived with these.
                        Limit::AbsNearOne(..) | Limit::Quotient(..) => return None,
                    }
                    words.push(format!("{weight} x {}", row.words()));
                }
                b.per_scale += roundings * u;
                b.per_scale *= 1.0 + 4.0 * b.per_scale;
                b.ulps = half;
                b.absolute = (roundings + 1.0) * if wgsl { normal } else { tiny };
                b.scaled = Scaled::Terms;
                words.push(format!("{roundings} roundings, each of the magnitude of the intermediates; + {half} ulp"));
                b.words = words.join(" + ");
            }
            Tolerance::Softmax(terms) => {
                let n = terms(case);
                let row = limit("exp", lang, out)?;
                let (a, per) = row.limit.ulps()?;
                // First-order sum of the relative errors, then 1/(1 - r) for their products.
                let first = 4.0 * nearest * a + gamma(n, u);
                b.relative = first / (1.0 - first).max(0.5);
                b.relative_per_scale = (2.0 * nearest * per + u) * 1.01;
                b.scale_cap = exp_range(arithmetic);
                // A subnormal exponential has an absolute error; the sum that it is divided by is at least 1.
                b.absolute = (a + per * b.scale_cap + 1.0) * tiny;
                b.add(limit("divide", lang, out)?);
                b.scaled = Scaled::One;
                b.words = format!(
                    "2 x {} + {} + gamma_{n} of the sum + rounding of x - max (first order / (1 - r))",
                    row.words(),
                    b.words
                );
            }
        }
        if out != arithmetic {
            b.words.push_str(&format!("; + {half} ulp of {out} storage"));
        }
        Some(b)
    }
}

/// Magnitude beyond which exp is 0 or infinite in the dtype: ln 2 times the exponent of the smallest subnormal.
fn exp_range(dtype: DType) -> f64 {
    let bits = dtype.mantissa_bits().unwrap_or(0) - dtype.min_exponent().unwrap_or(0);
    f64::from(bits) * std::f64::consts::LN_2
}

/// True if every scalar attribute is a whole number.
fn whole_attrs(case: &Case) -> bool {
    case.attrs.iter().all(|(_, v)| !matches!(v, Attr::Float(f) if f.fract() != 0.0))
}

impl Bound {
    fn add(&mut self, row: &LimitRow) {
        match row.limit {
            Limit::Ulp(n) => self.ulps += n,
            Limit::UlpPlus(n, per) => {
                self.ulps += n;
                self.ulps_per_scale += per;
                // The scale of a row with a range of its own is no argument of exp.
                if row.within.1.is_infinite() {
                    self.scale_cap = exp_range(self.arithmetic);
                }
            }
            Limit::Abs(a) => self.absolute += a,
            curve => self.curve = Some(curve),
        }
        self.words = row.words();
    }

    /// Below this a result counts as subnormal, in arithmetic or storage.
    fn normal(&self) -> f64 {
        min_normal(self.arithmetic).max(min_normal(self.storage))
    }

    /// Largest allowed |got - want| for one element with oracle value `want` and scale `scale`. For the rule of the
    /// nearest number this is half an ulp; [`Bound::judge`] is stricter where the spacing changes.
    pub fn allowed(&self, want: f64, scale: f64) -> f64 {
        if self.form == Form::Bits {
            return if self.flush_operand && scale < self.normal() { scale } else { 0.0 };
        }
        let half = if self.lang == Lang::Wgsl { 1.0 } else { 0.5 };
        let mut e = 0.0;
        let exact_sum = self.arithmetic.mantissa_bits().map_or(0.0, |p| 2f64.powi(p));
        if self.after > 0.0 {
            e += self.after * exact::ulp(self.arithmetic, want);
        }
        if !(self.integers && scale * self.terms <= exact_sum) {
            let per = |k: f64| if k > 0.0 { k * scale.min(self.scale_cap) } else { 0.0 };
            let ulp = exact::ulp(self.arithmetic, want);
            e += (self.ulps + per(self.ulps_per_scale)) * ulp
                + per(self.per_scale)
                + (self.relative + per(self.relative_per_scale)) * want.abs()
                + self.absolute;
            e += match self.curve {
                Some(Limit::AbsNearOne(a, _)) if (0.5..=2.0).contains(&scale) => a,
                Some(Limit::AbsNearOne(_, n)) => n * ulp,
                // (s + d) / (c + d) - s / c is at most d (1 + |s/c|) / (|c| - d), and 1 / |c| is sqrt(1 + (s/c)²).
                Some(Limit::Quotient(d, n)) => {
                    let c = 1.0 / want.hypot(1.0);
                    if d < c / 2.0 { d * (1.0 + want.abs()) / (c - d) + 2.0 * n * ulp } else { f64::INFINITY }
                }
                _ => 0.0,
            };
            if self.flush && want.abs() < self.normal() {
                e += want.abs() + exact::ulp(self.arithmetic, 0.0);
            }
        }
        if self.storage != self.arithmetic {
            // Rounding to storage happens after the arithmetic's error, so at a magnitude up to e larger.
            e += half * 1.000_001 * exact::ulp(self.storage, want.abs() + e);
        }
        e
    }

    /// True if results whose terms have this magnitude must be exact: integer data, and storage that holds them all.
    pub fn exact_below(&self, scale: f64) -> bool {
        self.integers
            && self.storage == self.arithmetic
            && self.arithmetic.mantissa_bits().is_some_and(|p| scale <= 2f64.powi(p))
    }

    /// Judges one element.
    ///
    /// NaN equals only NaN; infinities must match in sign. Where the terms' magnitudes exceed the arithmetic's range,
    /// partial sums may overflow in some order: then infinities and NaN are accepted beside values within the bound,
    /// but no other finite value.
    pub fn judge(&self, got: Exact, want: Exact, scale: f64) -> Judged {
        let mut j = Judged { ok: false, undefined: false, error: None, allowed: 0.0, scaled: None };
        if let (Exact::I(a), Exact::I(b)) = (got, want) {
            let d = a.abs_diff(b) as f64;
            return Judged { ok: a == b, error: Some(d), scaled: Some(d / (b as f64).abs().max(1.0)), ..j };
        }
        let (g, w) = (got.to_f64(), want.to_f64());
        let top = max_finite(self.storage);
        let terms = scale * self.terms * (1.0 + self.per_scale);
        let spill = self.sums && (terms.is_nan() || terms >= max_finite(self.arithmetic));
        j.allowed = self.allowed(w, scale);
        if w.is_finite() && g.is_finite() {
            let d = got.add(want.neg()).abs_f64();
            j.error = Some(d);
            j.scaled = Some(match self.scaled {
                Scaled::Value => d / w.abs().max(min_normal(self.storage)),
                Scaled::Terms if d == 0.0 => 0.0,
                Scaled::Terms => d / scale.max(min_normal(self.storage)),
                Scaled::One => d,
            });
            j.ok = match self.form {
                Form::Bits => {
                    let same = d == 0.0 && (w != 0.0 || g.is_sign_negative() == w.is_sign_negative());
                    same || self.flush_operand && d <= j.allowed
                }
                Form::Nearest => {
                    d <= j.allowed && self.is_nearest(g, want, d) || self.lang == Lang::Wgsl && d <= self.flush_slack(w)
                }
                Form::Within => d <= j.allowed,
            };
            // WGSL may round an overflow down.
            j.ok |= self.lang == Lang::Wgsl && w.abs() > top && g.abs() == top && g * w > 0.0;
        } else {
            // The smallest magnitude that rounds to infinity.
            let over = match self.lang {
                Lang::Wgsl => top,
                _ => top + exact::ulp(self.storage, top) / 2.0,
            };
            j.ok = if w.is_nan() {
                // With products beyond f64 the oracle itself cannot tell an infinity from a difference of two.
                g.is_nan() || spill && scale.is_infinite() && g.is_infinite()
            } else if g.is_nan() {
                spill
            } else if w.is_infinite() {
                g == w || spill && g.is_infinite()
            } else {
                spill
                    || g * w > 0.0
                        && match self.form {
                            Form::Bits => false,
                            Form::Nearest => self.nearest_is_infinite(want),
                            Form::Within => w.abs() + j.allowed >= over,
                        }
            };
        }
        if !j.ok && self.lang == Lang::Wgsl && self.form != Form::Bits {
            j.undefined = !w.is_finite() || !scale.is_finite() || w.abs() > top;
        }
        // Where nothing is published, a result near the right one is no evidence either; an exact one needs none.
        let open = scale < self.within.0 || scale > self.within.1 || j.allowed.is_infinite();
        j.undefined |= open && j.error != Some(0.0) && !(w.is_nan() && g.is_nan());
        j.ok |= j.undefined;
        j
    }

    /// The first element of an output that is not right, in words; `None` if all are. For jobs that only need to know
    /// whether a result can be trusted; `verify` reports more.
    pub fn first_wrong(&self, want: &super::Reference, got: &HostTensor) -> Option<String> {
        self.first_wrong_unless(want, got, |_, _| false)
    }

    /// The same without the elements that are right for another reason, asked with index and value.
    pub fn first_wrong_unless(
        &self,
        want: &super::Reference,
        got: &HostTensor,
        excused: impl Fn(usize, Exact) -> bool,
    ) -> Option<String> {
        if want.values.len() as u64 != got.len() || want.scale.len() as u64 != got.len() {
            return Some(format!("{} elements, the oracle has {}", got.len(), want.values.len()));
        }
        (0..want.values.len()).find_map(|i| {
            let value = Exact::read(got, i as u64);
            let j = self.judge(value, want.values[i], want.scale[i]);
            let (g, w) = (value.to_f64(), want.values[i].to_f64());
            (!j.ok && !excused(i, value))
                .then(|| format!("element {i} is {g:e}, expected {w:e} within {:e} ({})", j.allowed, self.words))
        })
    }

    /// Error that flushed operands or results of one operation explain.
    fn flush_slack(&self, want: f64) -> f64 {
        self.absolute + if want.abs() < self.normal() { want.abs() } else { 0.0 }
    }

    /// True if no number of the storage type is nearer to `want` than `g` (WGSL: if none lies between them). `g` must be
    /// within an ulp already: far from `want` the neighbours' distances differ by less than these sums resolve.
    fn is_nearest(&self, g: f64, want: Exact, error: f64) -> bool {
        if error == 0.0 {
            return true;
        }
        let (below, above) = exact::neighbours(self.storage, g);
        let distance = |x: f64| Exact::f(x).add(want.neg());
        if self.lang == Lang::Wgsl {
            // want lies strictly between g and the neighbour on its side.
            return distance(below).to_f64() < 0.0 && distance(above).to_f64() > 0.0;
        }
        distance(below).abs_f64() >= error && distance(above).abs_f64() >= error
    }

    /// True if the nearest number to a finite exact value is an infinity: from half an ulp beyond the largest number on (WGSL:
    /// anywhere beyond it). Whether there is room for an error says nothing here: the largest number itself is no infinity.
    fn nearest_is_infinite(&self, want: Exact) -> bool {
        let top = max_finite(self.storage);
        let magnitude = if want.to_f64() < 0.0 { want.neg() } else { want };
        let beyond = magnitude.add(Exact::f(-top)).to_f64();
        if self.lang == Lang::Wgsl { beyond > 0.0 } else { beyond >= exact::ulp(self.storage, top) / 2.0 }
    }

    /// Limit of the seeds' strict line for this output: 1e-6 for f32, 1e-12 for f64, none for other dtypes.
    pub fn strict(&self) -> Option<f64> {
        match self.storage {
            DType::F32 => Some(1e-6),
            DType::F64 => Some(1e-12),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "tolerance_tests.rs"]
mod tests;
