//! The picture of `calibrate`.

use crate::base::record::CalibrateRecord;
use crate::base::units;

use super::*;

const WIDTH: u32 = 1160;
const ROW_HEIGHT: u32 = 330;
const HEAD: u32 = 34;

/// Keys that a picture holds: 40 are 13,000 pixels.
const MOST: usize = 40;

pub(super) struct Chart {
    keys: Vec<CalibrateRecord>,
}

const CPU: RGBColor = COLORS[0];
const GPU: RGBColor = COLORS[1];

impl Chart {
    /// The first keys, and how many more there are; `None` if there is none.
    pub(super) fn of(records: &[Record]) -> Option<(Self, usize)> {
        let key = |r: &Record| match r {
            Record::Calibrate(c) if !c.points.is_empty() => Some((**c).clone()),
            _ => None,
        };
        let mut keys: Vec<CalibrateRecord> = records.iter().filter_map(key).collect();
        let left_out = keys.len().saturating_sub(MOST);
        keys.truncate(MOST);
        (!keys.is_empty()).then_some((Chart { keys }, left_out))
    }

    pub(super) fn size(&self) -> (u32, u32) {
        (WIDTH, HEAD + ROW_HEIGHT * self.keys.len() as u32)
    }
}

/// The verdict with its figures.
fn verdict(k: &CalibrateRecord) -> String {
    match (k.crossing, k.ci, k.threshold) {
        (Some(at), Some([a, b]), Some(t)) => format!("{}: {at} ({a} .. {b}) {}, threshold {t}", k.verdict, k.unit),
        _ => k.verdict.clone(),
    }
}

impl Draw for Chart {
    fn draw<D: DrawingBackend>(&self, area: &DrawingArea<D, Shift>) -> Drawn
    where
        D::ErrorType: 'static,
    {
        let (head, rows) = area.split_vertically(HEAD);
        let entries = [("CPU", CPU), ("device", GPU), ("speed-up", COLORS[2]), ("crossing, interval", COLORS[3])];
        legend(&head, &entries.map(|(n, c)| (n.to_string(), c)), entries.len())?;
        for (k, row) in self.keys.iter().zip(rows.split_evenly((self.keys.len(), 1))) {
            let mut points = k.points.clone();
            points.sort_by_key(|p| p.size);
            let line = |name: &str, color, of: &dyn Fn(&crate::base::record::CalibratePoint) -> (f64, [f64; 2])| {
                let points = points.iter().map(|p| {
                    let (value, ci) = of(p);
                    (p.size as f64, value, ci)
                });
                Line { name: name.into(), color, points: points.filter(|p| p.1.is_finite() && p.1 > 0.0).collect() }
            };
            // Of the times there is a median only; the interval is the ratio's.
            let times =
                [line("CPU", CPU, &|p| (p.cpu_s, [p.cpu_s; 2])), line("device", GPU, &|p| (p.gpu_s, [p.gpu_s; 2]))];
            let ratio = [line("speed-up", COLORS[2], &|p| (p.cpu_s / p.gpu_s, p.ratio_ci))];
            let crossing: Vec<Crossing> = match (k.crossing, k.ci) {
                (Some(at), Some(ci)) => {
                    vec![Crossing { at: at as f64, ci: ci.map(|v| v as f64), color: COLORS[3] }]
                }
                _ => Vec::new(),
            };
            let sizes = points.iter().map(|p| p.size as f64);
            let span = sizes.fold((f64::INFINITY, 0f64), |(a, b), s| (a.min(s), b.max(s)));
            let name = format!("{} {} {}, {}, {}", k.op, k.dtype, k.family, k.device, k.residency);
            let decided = format!("Speed-up; {}", verdict(k));
            let (title, decided) = (clipped(&name, 470), clipped(&decided, 470));
            let x = format!("size ({})", k.unit);
            let cells = row.split_evenly((1, 2));
            let panel = |title, y, lines, y_label, level| Panel {
                title,
                x: &x,
                y,
                lines,
                crossings: &crossing,
                y_label,
                level,
                span,
            };
            panel(&title, "median time", &times, units::seconds, None).draw(&cells[0])?;
            panel(&decided, "CPU time / device time", &ratio, factor_label, Some(1.0)).draw(&cells[1])?;
        }
        Ok(())
    }
}
