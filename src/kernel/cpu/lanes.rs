//! Loops over runs of elements whose ends cost as little as their middles.
//!
//! The compiler makes vectors of a plain loop, but does the last elements, up to 63 of them, one by one. Here the last vector
//! overlaps the one before it, so every run of 16 elements and more consists of whole vectors. An element's result does not
//! depend on where in the run it is: the same steps are taken for each.

use super::number::Number;

/// Elements that are taken at once at the ends of a run.
const FEW: usize = 16;
/// Elements that are taken at once in its middle; also the number of independent sums, enough to hide the latency of additions
/// at any vector width.
pub(super) const LANES: usize = 64;

/// Beginnings of the blocks of [`FEW`] that cover what follows the first `whole` of `n` elements.
#[inline(always)]
pub(super) fn ends(n: usize, whole: usize) -> impl Iterator<Item = usize> {
    (whole..n).step_by(FEW).map(move |at| at.min(n - FEW))
}

/// [`FEW`]. The compiler does not know that it is no less: it would write out a loop of known length element by element before it
/// looks for vectors.
#[inline(always)]
pub(super) fn block() -> usize {
    std::hint::black_box(FEW).min(FEW)
}

/// Elements of a run of `n` that are taken in one loop before the blocks at the end: all, if there are too few for a block.
#[inline(always)]
pub(super) fn middle(n: usize) -> usize {
    if n < FEW { n } else { n / LANES * LANES }
}

/// `each!(x, y, |v| f(v))`: y = f(x), the shorter length counts; `f` may see an element twice. A macro, because the compiler would
/// leave a long closure that is called in two places a function of its own, of which no vectors are made.
macro_rules! each {
    ($x:expr, $y:expr, |$v:ident| $f:expr) => {{
        let (x, y) = ($x, $y);
        let n = x.len().min(y.len());
        let (x, y) = (&x[..n], &mut y[..n]);
        let whole = $crate::kernel::cpu::lanes::middle(n);
        for (y, $v) in y[..whole].iter_mut().zip(&x[..whole]) {
            let $v = *$v;
            *y = $f;
        }
        let len = $crate::kernel::cpu::lanes::block();
        for at in $crate::kernel::cpu::lanes::ends(n, whole) {
            for (y, $v) in y[at..at + len].iter_mut().zip(&x[at..at + len]) {
                let $v = *$v;
                *y = $f;
            }
        }
    }};
}
pub(super) use each;

/// `both!(a, b, y, |v, w| f(v, w))`: y = f(a, b), as [`each`].
macro_rules! both {
    ($a:expr, $b:expr, $y:expr, |$v:ident, $w:ident| $f:expr) => {{
        let (a, b, y) = ($a, $b, $y);
        let n = a.len().min(b.len()).min(y.len());
        let (a, b, y) = (&a[..n], &b[..n], &mut y[..n]);
        let whole = $crate::kernel::cpu::lanes::middle(n);
        for ((y, $v), $w) in y[..whole].iter_mut().zip(&a[..whole]).zip(&b[..whole]) {
            let ($v, $w) = (*$v, *$w);
            *y = $f;
        }
        let len = $crate::kernel::cpu::lanes::block();
        for at in $crate::kernel::cpu::lanes::ends(n, whole) {
            for ((y, $v), $w) in y[at..at + len].iter_mut().zip(&a[at..at + len]).zip(&b[at..at + len]) {
                let ($v, $w) = (*$v, *$w);
                *y = $f;
            }
        }
    }};
}
pub(super) use both;

/// Calls `f` with every element, with some of them twice.
#[inline(always)]
pub(super) fn covered<T: Copy>(x: &[T], mut f: impl FnMut(T)) {
    let n = x.len();
    let whole = middle(n);
    for x in &x[..whole] {
        f(*x);
    }
    let len = block();
    for at in ends(n, whole) {
        for x in &x[at..at + len] {
            f(*x);
        }
    }
}

/// y = f(y, x): the last block is computed before the first changes what it overlaps.
#[inline(always)]
pub(super) fn onto<T: Copy + Default>(x: &[T], y: &mut [T], f: impl Fn(T, T) -> T) {
    let n = x.len().min(y.len());
    let (x, y) = (&x[..n], &mut y[..n]);
    if n < FEW {
        for (y, x) in y.iter_mut().zip(x) {
            *y = f(*y, *x);
        }
        return;
    }
    let (len, end) = (block(), n - FEW);
    let mut last = [T::default(); FEW];
    for (last, (y, x)) in last[..len].iter_mut().zip(y[end..end + len].iter().zip(&x[end..end + len])) {
        *last = f(*y, *x);
    }
    let whole = n / LANES * LANES;
    for (y, x) in y[..whole].iter_mut().zip(&x[..whole]) {
        *y = f(*y, *x);
    }
    for at in (whole..end).step_by(FEW) {
        for (y, x) in y[at..at + len].iter_mut().zip(&x[at..at + len]) {
            *y = f(*y, *x);
        }
    }
    y[end..].copy_from_slice(&last);
}

/// `add(sum, a, b)` over all pairs, the shorter length counts: in many sums that are joined in a fixed order, so the bits depend
/// on the length alone.
#[inline(always)]
pub(super) fn summed<T: Copy, A: Number>(a: &[T], b: &[T], add: impl Fn(A, T, T) -> A) -> A {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let one_by_one = |a: &[T], b: &[T]| a.iter().zip(b).fold(A::default(), |s, (a, b)| add(s, *a, *b));
    if n < FEW {
        return one_by_one(a, b);
    }
    let mut sums = [A::default(); FEW];
    let ((a_whole, a), (b_whole, b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    if !a_whole.is_empty() {
        let mut lanes = [A::default(); LANES];
        for (a, b) in a_whole.iter().zip(b_whole) {
            for i in 0..LANES {
                lanes[i] = add(lanes[i], a[i], b[i]);
            }
        }
        for i in 0..FEW {
            sums[i] = lanes[i].add(lanes[i + FEW]).add(lanes[i + 2 * FEW].add(lanes[i + 3 * FEW]));
        }
    }
    let ((a_few, a), (b_few, b)) = (a.as_chunks::<FEW>(), b.as_chunks::<FEW>());
    let len = block();
    for (a, b) in a_few.iter().zip(b_few) {
        for (s, (a, b)) in sums[..len].iter_mut().zip(a[..len].iter().zip(&b[..len])) {
            *s = add(*s, *a, *b);
        }
    }
    let mut width = FEW;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] = sums[i].add(sums[i + width]);
        }
    }
    sums[0].add(one_by_one(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length on both sides of the blocks' lengths: no element is left out, none is taken twice.
    #[test]
    fn every_element_is_taken_once() {
        for n in (0..200).chain([1000, 1023, 1025]) {
            let x: Vec<i64> = (1..=n).collect();
            let mut y = vec![0i64; x.len()];
            each!(&x, &mut y, |v| 3 * v);
            assert!(y.iter().zip(&x).all(|(y, x)| *y == 3 * x), "{n}: {y:?}");
            both!(&x, &x, &mut y, |a, b| a * b);
            assert!(y.iter().zip(&x).all(|(y, x)| *y == x * x), "{n}: {y:?}");
            let mut seen = vec![false; x.len()];
            covered(&x, |v| seen[v as usize - 1] = true);
            assert!(seen.iter().all(|s| *s), "{n}: {seen:?}");
            onto(&x, &mut y, |y, x| 2 * y + x);
            assert!(y.iter().zip(&x).all(|(y, x)| *y == 2 * x * x + x), "{n}: {y:?}");
            assert_eq!(summed(&x, &x, |s: i64, a, b| s + a * b), x.iter().map(|x| x * x).sum::<i64>(), "{n}");
        }
    }

    /// The shortest run counts.
    #[test]
    fn runs_of_different_lengths() {
        let (x, mut y) = ([1i64; 40], [7i64; 33]);
        each!(&x[..20], &mut y, |v| v);
        assert_eq!((y[19], y[20]), (1, 7));
        assert_eq!(summed(&x, &x[..18], |s: i64, a, b| s + a * b), 18);
    }
}
