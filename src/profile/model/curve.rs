//! The form of a cost curve: terms that say what a call's time is made of, and a correction along the size of the work.

use serde::{Deserialize, Serialize};

use crate::base::{Features, units};

/// Most knots of a correction.
pub(super) const MOST_KNOTS: usize = 32;

/// Least distance between knots, and farthest place of the first, that a file may state.
const LEAST_STEP: f64 = 1e-6;
const FARTHEST_KNOT: f64 = 1e3;

/// How far beyond what was measured a curve is still asked, as a factor.
pub(super) const BEYOND: f64 = 32.0;

/// The curves of an entry: seconds of any call of its family, on the CPU and on the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Least and most of each [`Shape::axes`] among the measured shapes.
    pub span: [[f64; 2]; 4],
    /// Where calls have one dimension and the winner was found to change once: bytes read and written below which the CPU wins, and
    /// from which on the device does. Of such calls a size says all, so that only between these do the sides' times decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<[f64; 2]>,
    /// The CPU.
    pub cpu: Side,
    /// The device, with the copies that the residency needs.
    pub device: Side,
}

/// Which bytes say how much of a processor a call fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// Those written: one worker for so many results.
    Output,
    /// The larger of those read and those written.
    #[default]
    Larger,
}

/// One side's time: (`fixed_s` + outer · `outer_s` + read · `read_s` + written · `written_s` + body) · correction.
///
/// Outer is the first of several dimensions: rows, matrices, images, each of which may cost something whatever its length.
///
/// The body is the larger of arithmetic and traffic (their sum if `serial`). Arithmetic: operations · `flop_s`, dimensions
/// rounded up to `tile`; where the extent is below `wave` bytes not all workers take part, so that it takes wave / extent
/// times as long, at most `wave_most` times. `stepped`: further waves, too, take as long as whole ones. Traffic: bytes ·
/// `byte_s`, and `miss_s` for each byte beyond `cache`; below `fill` bytes of the extent dearer in the same way. `teamed`:
/// below `wave` one worker works alone, from there on all do, and starting them takes `team_s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Side {
    /// Seconds of a call that does nothing: launch, latency of copies, waiting.
    pub fixed_s: f64,
    /// Seconds per byte read besides traffic: copies to the device.
    pub read_s: f64,
    /// Seconds per byte written besides traffic: copies back.
    pub written_s: f64,
    /// Seconds per operation.
    pub flop_s: f64,
    /// Seconds per byte written besides, shared out as operations are: beginning and storing a result.
    #[serde(skip_serializing_if = "is_zero")]
    pub result_s: f64,
    /// Seconds per row, matrix or image besides: the first dimension where there are several.
    #[serde(skip_serializing_if = "is_zero")]
    pub outer_s: f64,
    /// Seconds per byte moved.
    pub byte_s: f64,
    /// Seconds more per byte beyond `cache`.
    pub miss_s: f64,
    /// Bytes from which on traffic is dearer; 0: none.
    pub cache: f64,
    /// Bytes of the extent that a wave takes; 0: no waves.
    pub wave: f64,
    /// Most that a wave which is not full costs, as a factor: the number of workers; 0: no limit.
    pub wave_most: f64,
    /// Operations per byte written that let another worker take part in a result; 0: one worker makes it.
    #[serde(skip_serializing_if = "is_zero")]
    pub deep: f64,
    /// Whether up to `deep` operations per byte written are one worker's alone; then as many workers as there are `deep`s.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hinged: bool,
    /// Whether a part of a further wave takes as long as a whole one.
    pub stepped: bool,
    /// Whether all workers start at once where a wave is full, and one works alone before.
    pub teamed: bool,
    /// Seconds to start them.
    pub team_s: f64,
    /// Bytes of the extent that draw the full bandwidth; 0: any.
    pub fill: f64,
    /// Most that fewer cost, as a factor; 0: no limit.
    pub fill_most: f64,
    /// Dimensions are rounded up to multiples of it, a power of two; 0 or 1: not rounded.
    pub tile: u64,
    /// Whether arithmetic and traffic add up.
    pub serial: bool,
    /// What waves and `fill` are counted in.
    pub extent: Extent,
    /// Root mean square of what is left unexplained of the logarithms of the measured times.
    pub error: f64,
    /// The place of the first knot of the correction and the distance between knots, as `place` counts.
    pub knots: [f64; 2],
    /// Factors at the knots; linear between, constant beyond. Empty: 1.
    pub factors: Vec<f64>,
}

// By reference, as serde asks.
fn is_zero(v: &f64) -> bool {
    *v == 0.0
}

/// What a side needs to know of a call, as numbers to calculate with.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    flops: f64,
    read: f64,
    written: f64,
    place: f64,
    outer: f64,
    depth: f64,
    dims: [u64; crate::base::MOST_DIMS],
}

impl Shape {
    /// Of a call.
    #[inline(always)]
    pub fn of(call: &Features) -> Self {
        // Work beyond 64 bits is nowhere measured.
        let work = u64::try_from(call.work).unwrap_or(u64::MAX);
        let (flops, written) = (call.cost.flops as f64, call.cost.written as f64);
        Shape {
            flops,
            read: call.cost.read as f64,
            written,
            depth: flops / written.max(1.0),
            place: place(work as f64),
            outer: if call.dims[1] > 0 { call.dims[0] as f64 } else { 0.0 },
            dims: call.dims,
        }
    }

    /// Where the correction is looked up.
    pub(super) fn place(&self) -> f64 {
        self.place
    }

    /// The first of several dimensions; 0 where there is one.
    pub(super) fn outer(&self) -> f64 {
        self.outer
    }

    /// Bytes read and bytes written.
    pub(super) fn copies(&self) -> [f64; 2] {
        [self.read, self.written]
    }

    /// Operations per byte written.
    pub(super) fn depth(&self) -> f64 {
        self.depth
    }

    /// Bytes in both directions.
    pub(super) fn bytes(&self) -> f64 {
        self.read + self.written
    }

    /// Bytes that say how much is filled, at least 1.
    pub(super) fn extent(&self, which: Extent) -> f64 {
        match which {
            Extent::Output => self.written,
            Extent::Larger => self.read.max(self.written),
        }
        .max(1.0)
    }

    /// What the measured shapes span: operations, bytes read, bytes written, operations per byte written; all at least 1.
    pub fn axes(&self) -> [f64; 4] {
        [self.flops.max(1.0), self.read.max(1.0), self.written.max(1.0), self.depth.max(1.0)]
    }

    /// Factor of the operations if each dimension is rounded up to multiples of `tile`.
    pub(super) fn padded(&self, tile: u64) -> f64 {
        padded_by(&self.dims, tile)
    }
}

/// Factor by which dimensions grow if each is rounded up to multiples of `tile`, a power of two.
#[inline(always)]
pub(super) fn padded_by(dims: &[u64], tile: u64) -> f64 {
    if tile < 2 {
        return 1.0;
    }
    let (mut up, mut exact) = (1.0, 1.0);
    for d in dims.iter().filter(|d| **d > 0) {
        up *= (d.saturating_add(tile - 1) & !(tile - 1)) as f64;
        exact *= *d as f64;
    }
    up / exact
}

/// log2, exact at powers of two and linear between; cheap and strictly growing, which is all that a knot needs.
pub(super) fn place(work: f64) -> f64 {
    const ONE: u64 = 1f64.to_bits();
    const STEP: f64 = (1u64 << 52) as f64;
    work.max(1.0).to_bits().wrapping_sub(ONE) as f64 / STEP
}

impl Side {
    /// Factor of what does not fill `full` bytes.
    fn under(&self, extent: f64, full: f64, most: f64) -> f64 {
        if full <= 0.0 || extent >= full {
            return 1.0;
        }
        let most = if most > 0.0 { most } else { f64::MAX };
        if self.teamed { most } else { (full / extent).min(most) }
    }

    /// Factor of the arithmetic for what does not fill its waves.
    fn waves(&self, extent: f64) -> f64 {
        let waves = extent / self.wave;
        if self.stepped && waves > 1.0 && waves < 1e9 {
            return ((waves - 1e-9) as u64 as f64 + 1.0) / waves;
        }
        self.under(extent, self.wave, self.wave_most)
    }

    /// Arithmetic and traffic.
    pub(super) fn parts(&self, s: &Shape) -> [f64; 2] {
        let extent = s.extent(self.extent);
        let shared = match () {
            () if self.deep <= 0.0 => 1.0,
            () if self.hinged => (s.depth() / self.deep).max(1.0),
            () => 1.0 + s.depth() / self.deep,
        };
        let work = s.flops * self.flop_s * s.padded(self.tile) + s.written * self.result_s;
        let arithmetic = work * self.waves(extent * shared);
        let bytes = s.bytes();
        let missed = if self.cache > 0.0 { (bytes - self.cache).max(0.0) } else { 0.0 };
        let full = if self.teamed { self.wave } else { self.fill };
        [arithmetic, (bytes * self.byte_s + missed * self.miss_s) * self.under(extent, full, self.fill_most)]
    }

    /// Whether a team is started.
    pub(super) fn team(&self, s: &Shape) -> bool {
        self.teamed && s.extent(self.extent) >= self.wave
    }

    /// Seconds without the correction.
    pub(super) fn terms(&self, s: &Shape) -> f64 {
        let [arithmetic, traffic] = self.parts(s);
        let body = if self.serial { arithmetic + traffic } else { arithmetic.max(traffic) };
        let team = if self.team(s) { self.team_s } else { 0.0 };
        self.fixed_s + team + s.outer * self.outer_s + s.read * self.read_s + s.written * self.written_s + body
    }

    /// The correction at a place.
    pub(super) fn correction(&self, place: f64) -> f64 {
        let [first, step] = self.knots;
        let (Some(low), Some(high)) = (self.factors.first(), self.factors.last()) else { return 1.0 };
        let at = (place - first) / step;
        if at <= 0.0 {
            return *low;
        }
        // Beyond the last knot nothing is looked up, however far.
        let i = (at as usize).min(self.factors.len());
        match (self.factors.get(i), self.factors.get(i + 1)) {
            (Some(a), Some(b)) => a + (b - a) * (at - i as f64),
            _ => *high,
        }
    }

    /// Seconds of a call.
    pub fn seconds(&self, s: &Shape) -> f64 {
        self.terms(s) * self.correction(s.place)
    }

    /// The sum behind the seconds, for people.
    pub fn text(&self, call: &Features) -> String {
        let s = Shape::of(call);
        let [arithmetic, traffic] = self.parts(&s);
        let mut terms = vec![format!("launch {}", units::seconds(self.fixed_s))];
        if self.team(&s) {
            terms.push(format!("{} to start all threads", units::seconds(self.team_s)));
        }
        if self.outer_s * s.outer > 0.0 {
            terms.push(format!("{} times {} each", s.outer, units::seconds(self.outer_s)));
        }
        let mut copy = |what: &str, bytes: f64, per_byte: f64| {
            if per_byte * bytes > 0.0 {
                terms.push(format!(
                    "{} {what} / {}/s",
                    units::bytes(bytes as u64),
                    units::bytes((1.0 / per_byte) as u64)
                ));
            }
        };
        copy("in", s.read, self.read_s);
        copy("out", s.written, self.written_s);
        let per_s = |v: f64, total: f64| if total > 0.0 { v / total } else { f64::INFINITY };
        let arithmetic_text =
            format!("{} at {:.3} Gop/s ({})", s.flops, per_s(s.flops, arithmetic) / 1e9, units::seconds(arithmetic));
        let traffic_text = format!(
            "{} at {:.3} GB/s ({})",
            units::bytes(s.bytes() as u64),
            per_s(s.bytes(), traffic) / 1e9,
            units::seconds(traffic)
        );
        terms.push(match (arithmetic > 0.0, traffic > 0.0) {
            (true, true) if self.serial => format!("{arithmetic_text} + {traffic_text}"),
            (true, true) => format!("the longer of {arithmetic_text} and {traffic_text}"),
            (true, false) => arithmetic_text,
            (false, true) => traffic_text,
            (false, false) => "nothing that grows".into(),
        });
        let factor = self.correction(s.place);
        let sum = terms.join(" + ");
        let by = if (factor - 1.0).abs() < 5e-4 { String::new() } else { format!(", times {factor:.3} at this size") };
        format!("{} = {sum}{by}", units::seconds(self.seconds(&s)))
    }

    /// What a reader must not accept, in words.
    fn fault(&self) -> Option<String> {
        let numbers = [
            ("fixed_s", self.fixed_s),
            ("read_s", self.read_s),
            ("written_s", self.written_s),
            ("flop_s", self.flop_s),
            ("result_s", self.result_s),
            ("outer_s", self.outer_s),
            ("deep", self.deep),
            ("byte_s", self.byte_s),
            ("miss_s", self.miss_s),
            ("cache", self.cache),
            ("wave", self.wave),
            ("wave_most", self.wave_most),
            ("team_s", self.team_s),
            ("fill_most", self.fill_most),
            ("fill", self.fill),
            ("error", self.error),
        ];
        if let Some((name, v)) = numbers.into_iter().find(|(_, v)| !(v.is_finite() && *v >= 0.0)) {
            return Some(format!("{name} = {v}: expected 0 or more"));
        }
        if self.fixed_s + self.flop_s + self.byte_s + self.read_s + self.written_s <= 0.0 {
            return Some("no term takes any time".into());
        }
        // Alone, without a limit, would take for ever.
        if self.teamed && (self.wave_most < 1.0 || self.fill_most < 1.0) {
            return Some("teamed needs wave_most and fill_most from 1 on".into());
        }
        if self.tile > 1 && !(self.tile.is_power_of_two() && self.tile <= 1 << 16) {
            return Some(format!("tile = {}: expected a power of two up to 65536", self.tile));
        }
        if self.factors.len() > MOST_KNOTS {
            return Some(format!("{} factors: at most {MOST_KNOTS}", self.factors.len()));
        }
        let [first, step] = self.knots;
        // Places count powers of two, so that there are 64; a curve that is fitted has steps from 0.001 on.
        let sound = first.abs() <= FARTHEST_KNOT && step.is_finite() && step >= LEAST_STEP;
        if !(self.factors.is_empty() || sound) {
            let expected = format!("a place up to {FARTHEST_KNOT} and a step from {LEAST_STEP} on");
            return Some(format!("knots = [{first}, {step}]: expected {expected}"));
        }
        let wild = self.factors.iter().find(|f| !(f.is_finite() && (0.01..=100.0).contains(*f)));
        wild.map(|f| format!("factor {f}: expected 0.01 to 100"))
    }
}

impl Curve {
    /// True if the call is like the measured ones: within a factor of 32 of them in operations, bytes read, bytes written and
    /// operations per byte written.
    pub fn covers(&self, s: &Shape) -> bool {
        s.axes().iter().zip(&self.span).all(|(v, [low, high])| *v * BEYOND >= *low && *v <= *high * BEYOND)
    }

    /// What was found where a size says all, for people; `None` where the sides' times decide.
    pub fn change_text(&self, call: &Features) -> Option<String> {
        let [low, high] = self.change?;
        let found = match self.outside(&Shape::of(call))? {
            true => format!("the device wins from {} moved on", units::bytes(high as u64)),
            false => format!("the CPU wins below {} moved", units::bytes(low as u64)),
        };
        Some(format!("curve: one dimension, so that what was found decides: {found}"))
    }

    /// Whether the device wins a call outside of [`Curve::change`]; `None` within it, and where there is none.
    pub(super) fn outside(&self, s: &Shape) -> Option<bool> {
        let [low, high] = self.change?;
        let bytes = s.bytes();
        if bytes >= high { Some(true) } else { (bytes < low).then_some(false) }
    }

    /// Why a file with this curve is refused; `None` if it is sound.
    pub fn fault(&self) -> Option<String> {
        let sound = |[low, high]: &[f64; 2]| low.is_finite() && high.is_finite() && *low >= 1.0 && low <= high;
        if !self.span.iter().all(sound) {
            return Some("span: expected pairs of ascending numbers from 1 on".into());
        }
        if !self.change.iter().all(sound) {
            return Some("change: expected two ascending numbers from 1 on".into());
        }
        let side = |name: &str, s: &Side| s.fault().map(|why| format!("{name}.{why}"));
        side("cpu", &self.cpu).or_else(|| side("device", &self.device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Cost, MOST_DIMS};

    fn features(n: u64) -> Features {
        let mut dims = [0; MOST_DIMS];
        dims[0] = n;
        Features { work: u128::from(n), cost: Cost { flops: 10 * n, read: 8 * n, written: 4 * n }, dims }
    }

    fn side() -> Side {
        Side { fixed_s: 1e-5, flop_s: 1e-10, byte_s: 1e-11, read_s: 1e-10, ..Side::default() }
    }

    #[test]
    fn the_terms_add_up_as_stated() {
        let s = Shape::of(&features(1000));
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-9, "{got} instead of {want}");
        // 10,000 operations at 0.1 ns are longer than 12,000 bytes at 0.01 ns.
        near(side().seconds(&s), 1e-5 + 8e-7 + 1e-6);
        near(Side { serial: true, ..side() }.seconds(&s), 1e-5 + 8e-7 + 1e-6 + 1.2e-7);
        // A wave takes 5,000 bytes: the 8,000 read are two, which take as long as 10,000 would.
        near(Side { wave: 5e3, stepped: true, ..side() }.seconds(&s), 1e-5 + 8e-7 + 1.25e-6);
        near(Side { wave: 16e3, ..side() }.seconds(&s), 1e-5 + 8e-7 + 2e-6);
        near(Side { wave: 16e3, wave_most: 1.5, ..side() }.seconds(&s), 1e-5 + 8e-7 + 1.5e-6);
        // 4,000 bytes written; 2.5 operations for each of them, so half as many workers again take part.
        near(Side { result_s: 1e-10, ..side() }.seconds(&s), 1e-5 + 8e-7 + 1.4e-6);
        near(Side { wave: 24e3, deep: 5.0, ..side() }.seconds(&s), 1e-5 + 8e-7 + 2e-6);
        near(Side { wave: 24e3, deep: 1.25, hinged: true, ..side() }.seconds(&s), 1e-5 + 8e-7 + 1.5e-6);
        near(Side { wave: 24e3, deep: 5.0, hinged: true, ..side() }.seconds(&s), 1e-5 + 8e-7 + 3e-6);
        near(Side { wave: 16e3, extent: Extent::Output, ..side() }.seconds(&s), 1e-5 + 8e-7 + 4e-6);
        let alone = Side { wave: 16e3, wave_most: 8.0, fill_most: 2.0, teamed: true, team_s: 1.0, ..side() };
        near(alone.seconds(&s), 1e-5 + 8e-7 + 8e-6);
        near(Side { wave: 8e3, ..alone }.seconds(&s), 1.0 + 1e-5 + 8e-7 + 1e-6);
        let far = Side { flop_s: 0.0, cache: 2e3, miss_s: 1e-9, ..side() };
        near(far.seconds(&s), 1e-5 + 8e-7 + 1.2e-7 + 1e-5);
        // One dimension has no rows; two have.
        near(Side { outer_s: 1e-6, ..side() }.seconds(&s), 1e-5 + 8e-7 + 1e-6);
        let mut rows = features(1000);
        (rows.dims[0], rows.dims[1]) = (20, 50);
        near(Side { outer_s: 1e-6, ..side() }.seconds(&Shape::of(&rows)), 1e-5 + 20e-6 + 8e-7 + 1e-6);
        // 1,000 is rounded up to 1,024.
        near(Side { tile: 64, ..side() }.seconds(&s), 1e-5 + 8e-7 + 1.024e-6);
        let corrected = Side { knots: [0.0, 4.0], factors: vec![1.0, 3.0, 3.0], ..side() };
        assert!((corrected.correction(2.0) - 2.0).abs() < 1e-12);
        assert_eq!([corrected.correction(-1.0), corrected.correction(99.0)], [1.0, 3.0]);
    }

    /// What no file may state can still be made in memory: it must not overflow either.
    #[test]
    fn knots_that_lie_too_close_or_too_far_mean_the_last_factor() {
        for knots in [[0.0, 1e-30], [0.0, f64::MIN_POSITIVE], [-1e300, 1.0], [-f64::MAX, 1e-300]] {
            let side = Side { knots, factors: vec![2.0, 3.0], ..side() };
            assert_eq!(side.correction(10.0), 3.0, "{knots:?}");
        }
    }

    #[test]
    fn places_grow_with_the_work() {
        assert_eq!([place(0.0), place(1.0), place(2.0), place(1024.0)], [0.0, 0.0, 1.0, 10.0]);
        assert!((1..2000).all(|n| place(f64::from(n)) < place(f64::from(n + 1))));
    }

    #[test]
    fn a_sum_can_be_read() {
        let text = side().text(&features(1 << 20));
        for part in
            ["launch 10.0 us", "8.00 MiB in / 9.31 GiB/s", "the longer of", "10485760 at 10.000 Gop/s (1.05 ms)"]
        {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
    }

    #[test]
    fn what_was_found_can_be_read() {
        // 12 bytes each.
        let curve = Curve { change: Some([12_288.0, 24_576.0]), ..Curve::default() };
        let said = |n| curve.change_text(&features(n)).unwrap_or_default();
        assert!(said(1023).ends_with("the CPU wins below 12.0 KiB moved"), "{}", said(1023));
        assert_eq!([said(1024), said(2047)], ["", ""], "the sums decide");
        assert!(said(2048).ends_with("the device wins from 24.0 KiB moved on"), "{}", said(2048));
        assert_eq!(Curve::default().change_text(&features(9)), None);
    }

    #[test]
    fn what_a_file_must_not_say_is_refused() {
        let good = Curve { span: [[1.0, 2.0]; 4], change: None, cpu: side(), device: side() };
        assert_eq!(good.fault(), None);
        let text = toml::to_string(&good).unwrap();
        assert_eq!(toml::from_str::<Curve>(&text).unwrap(), good);
        let with = |change: fn(&mut Side)| {
            let mut curve = good.clone();
            change(&mut curve.device);
            curve.fault()
        };
        let faults: [fn(&mut Side); 13] = [
            |s| s.fixed_s = -1.0,
            |s| s.flop_s = f64::NAN,
            |s| s.wave = f64::INFINITY,
            |s| s.tile = 3,
            |s| *s = Side::default(),
            |s| s.factors = vec![1.0],
            |s| (s.factors, s.knots) = (vec![0.0], [0.0, 1.0]),
            |s| (s.factors, s.knots) = (vec![1.0; 99], [0.0, 1.0]),
            |s| (s.factors, s.knots) = (vec![1.0; 3], [0.0, 1e-30]),
            |s| (s.factors, s.knots) = (vec![1.0; 3], [-1e300, 1.0]),
            |s| (s.factors, s.knots) = (vec![1.0; 3], [f64::NAN, 1.0]),
            |s| (s.factors, s.knots) = (vec![1.0; 3], [0.0, f64::INFINITY]),
            |s| s.teamed = true,
        ];
        for (i, fault) in faults.into_iter().enumerate() {
            assert!(with(fault).is_some_and(|why| why.starts_with("device.")), "fault {i}");
        }
        for pair in [[0.0, 1.0], [2.0, 1.0], [1.0, f64::NAN], [1.0, f64::INFINITY]] {
            assert!(Curve { span: [pair; 4], ..good.clone() }.fault().is_some_and(|why| why.starts_with("span")));
            let fault = Curve { change: Some(pair), ..good.clone() }.fault();
            assert!(fault.is_some_and(|why| why.starts_with("change")), "{pair:?}");
        }
        let changes = Curve { change: Some([1e4, 2e4]), ..good.clone() };
        assert_eq!((changes.fault(), toml::from_str(&toml::to_string(&changes).unwrap())), (None, Ok(changes)));
        let shape = |n| Shape::of(&features(n));
        let narrow = Curve { span: [[1e4, 2e4], [8e3, 16e3], [4e3, 8e3], [2.0, 3.0]], ..good };
        assert!(narrow.covers(&shape(1000)) && narrow.covers(&shape(60_000)) && !narrow.covers(&shape(100_000)));
        assert!(!narrow.covers(&shape(10)));
    }
}
