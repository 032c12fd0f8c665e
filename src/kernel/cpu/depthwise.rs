//! Convolutions with one channel and one filter in each group: sums of a plane's elements, shifted. A channel's planes are laid out
//! where they are used, so that they stay in the first-level cache.

use super::CpuCtx;
use super::conv::Sizes;
use super::math::Real;
use super::planes::{Layout, with_space};
use super::product::Element;
use super::simd::sweep::{DOTS, Rows, Shifts, Sweeps, Swept};
use super::simd::{Job, Style, dispatch};
use super::sweep::{Phase, Plan, put};

/// The result of one image in NCHW.
pub(super) fn apply<T: Element + Swept>(ctx: &CpuCtx<'_>, plan: &Plan, x: &[T], f: &[T], y: &mut [T]) {
    let pixels = plan.to.h * plan.to.w;
    let set = T::sweeps(ctx.isa);
    let parts = ctx.parts_for_bytes(4 * size_of_val(y));
    ctx.split(y, CpuCtx::chunk(plan.to.c, parts, 1) * pixels, |first, y| {
        dispatch(ctx.isa, Channels { plan, set: &set, x, f, first: first / pixels, y });
    });
}

/// Channels from `first` on.
struct Channels<'a, T> {
    plan: &'a Plan,
    set: &'a Sweeps<T>,
    x: &'a [T],
    f: &'a [T],
    first: usize,
    y: &'a mut [T],
}

impl<T: Element + Swept> Job for Channels<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let (plan, layout) = (self.plan, &self.plan.layout);
        let pixels = plan.to.h * plan.to.w;
        let scratch =
            2 * plan.phases.iter().map(|p| if p.step.1 == 1 { 0 } else { p.rows * p.cols }).max().unwrap_or(0);
        let runs = layout.runs();
        let mut factors = Vec::new();
        let in_order = plan.phases.iter().all(|p| p.filters.iter().copied().eq(0..p.filters.len()));
        with_space(layout.one() + scratch, |space| {
            let (own, scratch) = space.split_at_mut(layout.one());
            layout.clear(own);
            for (i, y) in self.y.chunks_exact_mut(pixels).enumerate() {
                let channel = self.first + i;
                layout.fill_one(self.set, &runs, self.x, channel, own);
                let plane = &*own;
                let mut sums = |phase: &Phase, apart: usize, to: &mut [T]| {
                    let f = &self.f[channel * plan.of_group..];
                    let factors = if in_order {
                        &f[..phase.filters.len()]
                    } else {
                        factors.clear();
                        factors.extend(phase.filters.iter().map(|hop| f[*hop]));
                        &factors
                    };
                    let rows = Rows { count: phase.rows, data: layout.pitch, out: apart, len: phase.cols };
                    self.set.shifted(Shifts::new(&phase.planes, factors), plane, rows, to);
                };
                let mut phases = plan.phases.iter().peekable();
                while let Some(phase) = phases.next() {
                    let (first, apart) = (phase.first.0 * plan.to.w + phase.first.1, phase.step.0 * plan.to.w);
                    if phase.step.1 == 1 {
                        sums(phase, apart, &mut y[first..]);
                        continue;
                    }
                    let (even, odd) = scratch.split_at_mut(phase.rows * phase.cols);
                    sums(phase, phase.cols, even);
                    // Two columns' phases of the same rows are stored in turns.
                    let pair =
                        phases.next_if(|p| phase.step.1 == 2 && p.first == (phase.first.0, 1) && phase.first.1 == 0);
                    if let Some(next) = pair {
                        sums(next, next.cols, odd);
                    }
                    for (row, even) in even.chunks_exact(phase.cols).enumerate() {
                        let to = &mut y[first + row * apart..];
                        match pair {
                            None => put(even, to, phase.step.1, false),
                            Some(next) => in_turns(even, &odd[row * next.cols..][..next.cols], to),
                        }
                    }
                }
            }
        });
    }
}

/// Elements of `even` and `odd`, which has as many or one less, in turns.
#[inline(always)]
fn in_turns<T: Copy>(even: &[T], odd: &[T], to: &mut [T]) {
    for ((to, even), odd) in to.as_chunks_mut::<2>().0.iter_mut().zip(even).zip(odd) {
        *to = [*even, *odd];
    }
    if let Some(last) = even.get(odd.len()) {
        to[2 * odd.len()] = *last;
    }
}

/// The filters' gradient of all images (NCHW) to `sums`.
pub(super) fn weight<T: Element + Real + Swept>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    layout: &Layout,
    g: &[T],
    x: &[T],
    sums: &mut [T],
) {
    let window = s.depth();
    let set = T::sweeps(ctx.isa);
    let parts = ctx.parts_for_bytes(4 * size_of_val(g));
    ctx.split(sums, CpuCtx::chunk(s.c, parts, 1) * window, |first, sums| {
        dispatch(ctx.isa, Gradients { s, layout, set: &set, g, x, first: first / window, sums });
    });
}

/// Gradients of the filters of the channels from `first` on.
struct Gradients<'a, T> {
    s: &'a Sizes,
    layout: &'a Layout,
    set: &'a Sweeps<T>,
    g: &'a [T],
    x: &'a [T],
    first: usize,
    sums: &'a mut [T],
}

impl<T: Element + Real + Swept> Job for Gradients<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let Gradients { s, layout, set, g, x, first, sums } = self;
        let (pixels, image) = (s.pixels(), s.c * s.h * s.w);
        let rows = Rows { count: s.ho, data: layout.pitch, out: s.wo, len: s.wo };
        let runs = layout.runs();
        let mut few = [T::ZERO; DOTS[0]];
        sums.fill(T::ZERO);
        with_space(layout.one(), |plane| {
            layout.clear(plane);
            for n in 0..s.n {
                for (i, sums) in sums.chunks_exact_mut(s.depth()).enumerate() {
                    let channel = first + i;
                    let g = &g[(n * s.c + channel) * pixels..][..pixels];
                    layout.fill_one(set, &runs, &x[n * image..], channel, plane);
                    let mut at = 0;
                    while at < sums.len() {
                        let cols = DOTS.into_iter().find(|d| at + d <= sums.len()).unwrap_or(1);
                        set.dots(rows, g, (plane, &layout.offsets[at..at + cols]), &mut few);
                        for (sum, v) in sums[at..at + cols].iter_mut().zip(few) {
                            *sum = *sum + v;
                        }
                        at += cols;
                    }
                }
            }
        });
    }
}
